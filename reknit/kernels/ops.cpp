#include "reknit/kernels/ops.h"

#include "reknit/kernels/cpu_loops.h"
#include "reknit/kernels/cuda_path.h"

#include <algorithm>
#include <numeric>

namespace reknit::ops {
namespace {

std::optional<at::Tensor> value(const ParamView& param) {
  return param.present() ? std::make_optional(param.read()) : std::nullopt;
}

/// Nothing on CPU, or where there are many rows.
std::optional<at::Tensor> skinny_linear(const at::Tensor& x, const ParamView& weight,
                                        const ParamView& bias, cuda::SkinnyOptions options) {
  if (!x.is_cuda()) {
    return {};
  }
  options.bias = value(bias);
  return cuda::skinny_linear(x, weight.read(), options);
}

/// ATen's norms keep statistics and sums of 16-bit inputs in 16 bits on CPU: they are
/// given fp32.
at::Tensor widened(const at::Tensor& x) {
  return x.to(at::kFloat);
}

std::optional<at::Tensor> widened(const ParamView& param) {
  return param.present() ? std::make_optional(widened(param.read())) : std::nullopt;
}

void add_column_sums(const at::Tensor& d_bias, const at::Tensor& dy) {
  if (!d_bias.defined() || dy.size(0) == 0) {
    return;
  }
  if (dy.is_cuda()) {
    cuda::add_column_sums(d_bias, dy);
  } else {
    d_bias.add_(at::sum(dy, {0}, false, at::kFloat));
  }
}

/// Adds the rows dy[order[begin..end)) in that order to `row`, rounding once.
template <class T>
void add_rows(T* row, const T* dy, const int64_t* order, int64_t count, int64_t width,
              std::vector<float>& sum) {
  std::copy(row, row + width, sum.begin());
  for (int64_t i = 0; i < count; ++i) {
    const T* source = dy + order[i] * width;
    for (int64_t j = 0; j < width; ++j) {
      sum[j] += static_cast<float>(source[j]);
    }
  }
  std::copy(sum.begin(), sum.end(), row);
}

template <class T>
void embedding_backward_cpu(const T* dy, const int64_t* ids, int64_t count, T* d_table,
                            int64_t rows, int64_t width, int64_t constant_row) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [ids](int64_t a, int64_t b) { return ids[a] < ids[b]; });
  std::vector<float> sum(width);
  for (int64_t begin = 0; begin < count;) {
    const int64_t id = ids[order[begin]];
    REKNIT_INVARIANT(id >= 0 && id < rows, "token ", id, " is outside a table of ", rows, " rows");
    int64_t end = begin + 1;
    while (end < count && ids[order[end]] == id) {
      ++end;
    }
    if (id != constant_row) {
      add_rows(d_table + id * width, dy, order.data() + begin, end - begin, width, sum);
    }
    begin = end;
  }
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const ParamView& weight, const ParamView& bias) {
  if (const auto skinny = skinny_linear(x, weight, bias, {})) {
    return *skinny;
  }
  const at::Tensor weight_t = weight.read().t();
  return bias.present() ? at::addmm(bias.read(), x, weight_t) : at::mm(x, weight_t);
}

at::Tensor linear_activation(const at::Tensor& x, const ParamView& weight, const ParamView& bias,
                             Activation kind) {
  if (const auto skinny = skinny_linear(x, weight, bias, {.activation = kind})) {
    return *skinny;
  }
  if (x.is_cuda() && bias.present() &&
      (kind == Activation::kRelu || kind == Activation::kGeluTanh)) {
    return at::_addmm_activation(bias.read(), x, weight.read().t(), 1, 1,
                                 /*use_gelu=*/kind == Activation::kGeluTanh);
  }
  return activation(linear(x, weight, bias), kind);
}

at::Tensor linear_add(const at::Tensor& x, const ParamView& weight, const ParamView& bias,
                      const at::Tensor& residual) {
  const auto skinny = skinny_linear(x, weight, bias, {.residual = residual});
  if (skinny) {
    return *skinny;
  }
  if (x.is_cuda() && x.numel() > 0) {  // the product is faster without a bias of its own
    const at::Tensor y = at::mm(x, weight.read().t());
    cuda::add_residual(y, value(bias), residual);
    return y;
  }
  return linear(x, weight, bias).add_(residual);
}

at::Tensor linear_backward(const at::Tensor& dy, const at::Tensor& x, const ParamView& weight,
                           const at::Tensor& d_weight, const at::Tensor& d_bias) {
  if (d_weight.defined() && dy.size(0) > 0) {
    at::addmm_out(const_cast<at::Tensor&>(d_weight), d_weight, dy.t(), x);
  }
  add_column_sums(d_bias, dy);
  return at::mm(dy, weight.read());
}

at::Tensor activation(const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kSilu:
      return at::silu(x);
  }
  throw StateError("an activation outside the enumeration");
}

at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::kRelu:
      return at::threshold_backward(dy, x, 0);
    case Activation::kGelu:
      return at::gelu_backward(dy, x);
    case Activation::kGeluTanh:
      return at::gelu_backward(dy, x, "tanh");
    case Activation::kSilu:
      return at::silu_backward(dy, x);
  }
  throw StateError("an activation outside the enumeration");
}

at::Tensor activation_backward(at::Tensor dy, const at::Tensor& x, Activation kind,
                               const at::Tensor& d_bias) {
  if (dy.is_cuda() && dy.numel() > 0 && dy.is_contiguous() && x.is_contiguous()) {
    cuda::activation_backward_(dy, x, kind, d_bias);
    return dy;
  }
  const at::Tensor dx = activation_backward(dy, x, kind);
  add_column_sums(d_bias, dx);
  return dx;
}

Normed layer_norm(const at::Tensor& x, const ParamView& weight, const ParamView& bias, double eps) {
  if (x.is_cuda()) {
    return cuda::layer_norm(x, value(weight), value(bias), eps);
  }
  const auto [y, mean, rstd] =
      at::native_layer_norm(widened(x), {x.size(-1)}, widened(weight), widened(bias), eps);
  return {y.to(x.scalar_type()), mean.view({-1}), rstd.view({-1})};
}

at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const Normed& saved,
                               const ParamView& weight, const at::Tensor& d_weight,
                               const at::Tensor& d_bias, const at::Tensor& d_residual) {
  if (x.is_cuda()) {
    return cuda::layer_norm_backward(dy, x, saved, value(weight), d_weight, d_bias, d_residual);
  }
  const std::vector<int64_t> column = {x.size(0), 1};
  const auto [dx, weight_sums, bias_sums] = at::native_layer_norm_backward(
      widened(dy), widened(x), {x.size(-1)}, saved.mean.view(column), saved.rstd.view(column),
      widened(weight), std::nullopt, {true, d_weight.defined(), false});
  if (d_weight.defined()) {
    d_weight.add_(weight_sums);
  }
  add_column_sums(d_bias, dy);
  const at::Tensor rounded = dx.to(x.scalar_type());
  return d_residual.defined() ? rounded.add_(d_residual) : rounded;
}

at::Tensor embedding(const at::Tensor& ids, const ParamView& table, int64_t shift,
                     const at::Tensor& base) {
  if (ids.is_cuda()) {
    return cuda::embedding(ids, table.read(), shift, base);
  }
  at::Tensor rows = at::index_select(table.read(), 0, shift == 0 ? ids : at::add(ids, shift));
  return base.defined() ? rows.add_(base) : rows;
}

void embedding_backward(const at::Tensor& dy, const at::Tensor& ids, const at::Tensor& d_table,
                        int64_t constant_row) {
  if (!d_table.defined() || ids.numel() == 0) {
    return;
  }
  if (dy.is_cuda()) {
    cuda::embedding_backward(dy, ids, d_table, constant_row);
    return;
  }
  const at::Tensor rows = dy.contiguous();
  const at::Tensor tokens = ids.contiguous();
  cpu::with_type(dy.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    embedding_backward_cpu(rows.const_data_ptr<T>(), tokens.const_data_ptr<int64_t>(),
                           tokens.numel(), d_table.mutable_data_ptr<T>(), d_table.size(0),
                           d_table.size(1), constant_row);
  });
}

}  // namespace reknit::ops
