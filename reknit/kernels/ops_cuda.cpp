// Norms, bias gradients and embedding gradients: tensors to launchers.
#include "reknit/kernels/column_sums.h"
#include "reknit/kernels/cuda_args.h"
#include "reknit/kernels/cuda_path.h"
#include "reknit/kernels/dropout_cuda.h"
#include "reknit/kernels/embedding.h"
#include "reknit/kernels/norm.h"
#include "reknit/kernels/residual.h"

namespace reknit::ops::cuda {
namespace {

const void* data_or_null(const Param& param) {
  return param.has_value() ? param->const_data_ptr() : nullptr;
}

}  // namespace

void add_column_sums(const at::Tensor& d_bias, const at::Tensor& dy) {
  const at::Tensor rows = dy.contiguous();
  const int64_t partials = kernels::column_sums_partials(rows.size(0), rows.size(1));
  const at::Tensor sums = scratch(dy, partials * rows.size(1));
  kernels::column_sums(element_of(dy.scalar_type()), rows.const_data_ptr(), rows.size(0),
                       rows.size(1), d_bias.mutable_data_ptr(), sums.mutable_data_ptr<float>(),
                       stream_of(dy));
}

void activation_backward_(const at::Tensor& dy, const at::Tensor& x, Activation kind,
                          const at::Tensor& d_bias) {
  constexpr kernels::Bend kBends[] = {kernels::Bend::kRelu, kernels::Bend::kGelu,
                                      kernels::Bend::kGeluTanh, kernels::Bend::kSilu};
  kernels::BendBackward args;
  args.bend = kBends[static_cast<int>(kind)];
  args.rows = dy.size(0);
  args.width = dy.size(1);
  args.x = x.const_data_ptr();
  args.dy = dy.mutable_data_ptr();
  args.sum = mutable_or_null(d_bias);
  const at::Tensor sums =
      scratch(dy, kernels::column_sums_partials(args.rows, args.width) * args.width);
  args.scratch = sums.mutable_data_ptr<float>();
  kernels::bend_backward(element_of(dy.scalar_type()), args, stream_of(dy));
}

void add_residual(const at::Tensor& y, const Param& bias, const at::Tensor& residual) {
  const at::Tensor added = residual.contiguous();
  kernels::AddResidual args;
  args.rows = y.size(0);
  args.width = y.size(1);
  args.y = y.mutable_data_ptr();
  args.bias = data_or_null(bias);
  args.residual = added.const_data_ptr();
  kernels::add_residual(element_of(y.scalar_type()), args, stream_of(y));
}

Normed layer_norm(const at::Tensor& x, const Param& weight, const Param& bias, double eps) {
  const at::Tensor rows = x.contiguous();
  const auto options = x.options().dtype(at::kFloat);
  Normed out{at::empty_like(rows), at::empty({rows.size(0)}, options),
             at::empty({rows.size(0)}, options)};
  kernels::LayerNorm args;
  args.rows = rows.size(0);
  args.width = rows.size(1);
  args.eps = static_cast<float>(eps);
  args.x = rows.const_data_ptr();
  args.weight = data_or_null(weight);
  args.bias = data_or_null(bias);
  args.y = out.y.mutable_data_ptr();
  args.mean = out.mean.mutable_data_ptr<float>();
  args.rstd = out.rstd.mutable_data_ptr<float>();
  kernels::layer_norm(element_of(x.scalar_type()), args, stream_of(x));
  return out;
}

at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const Normed& saved,
                               const Param& weight, const at::Tensor& d_weight,
                               const at::Tensor& d_bias, const at::Tensor& d_residual) {
  const at::Tensor rows = x.contiguous();
  const at::Tensor grads = dy.contiguous();
  at::Tensor dx = at::empty_like(rows);
  const at::Tensor sums = scratch(x, kernels::layer_norm_partials(rows.size(0)) * 2 * rows.size(1));
  kernels::LayerNormBackward args;
  args.rows = rows.size(0);
  args.width = rows.size(1);
  args.dy = grads.const_data_ptr();
  args.x = rows.const_data_ptr();
  args.weight = data_or_null(weight);
  args.mean = saved.mean.const_data_ptr<float>();
  args.rstd = saved.rstd.const_data_ptr<float>();
  const at::Tensor added = d_residual.defined() ? d_residual.contiguous() : d_residual;
  args.d_residual = data_or_null(added);
  args.dx = dx.mutable_data_ptr();
  args.d_weight = mutable_or_null(d_weight);
  args.d_bias = mutable_or_null(d_bias);
  args.scratch = sums.mutable_data_ptr<float>();
  kernels::layer_norm_backward(element_of(x.scalar_type()), args, stream_of(x));
  return dx;
}

at::Tensor embedding(const at::Tensor& ids, const at::Tensor& table, int64_t shift,
                     const at::Tensor& base) {
  const at::Tensor rows = ids.contiguous();
  const at::Tensor added = base.defined() ? base.contiguous() : base;
  at::Tensor y = at::empty({rows.size(0), table.size(1)}, table.options());
  kernels::Embedding args;
  args.tokens = rows.size(0);
  args.width = table.size(1);
  args.table_rows = table.size(0);
  args.shift = shift;
  args.ids = rows.const_data_ptr<int64_t>();
  args.table = table.const_data_ptr();
  args.base = data_or_null(added);
  args.y = y.mutable_data_ptr();
  kernels::embedding(element_of(table.scalar_type()), args, stream_of(ids));
  return y;
}

void embedding_backward(const at::Tensor& dy, const at::Tensor& ids, const at::Tensor& d_table,
                        int64_t constant_row) {
  const at::Tensor rows = dy.contiguous();
  const auto [sorted_ids, order] = at::sort(ids.contiguous(), /*stable=*/true, 0, false);
  kernels::EmbeddingBackward args;
  args.tokens = rows.size(0);
  args.width = rows.size(1);
  args.table_rows = d_table.size(0);
  args.constant_row = constant_row;
  args.dy = rows.const_data_ptr();
  args.sorted_ids = sorted_ids.const_data_ptr<int64_t>();
  args.order = order.const_data_ptr<int64_t>();
  args.d_table = d_table.mutable_data_ptr();
  kernels::embedding_backward(element_of(dy.scalar_type()), args, stream_of(dy));
}

void drop_rows(at::ScalarType dtype, const kernels::DropoutRule& rule,
               const kernels::DropoutRows& rows, const at::Tensor& like) {
  kernels::drop_rows(element_of(dtype), rule, rows, stream_of(like));
}

}  // namespace reknit::ops::cuda
