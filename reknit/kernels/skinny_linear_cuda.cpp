// Products of few rows: tensors to the launcher.
#include "reknit/kernels/cuda_args.h"
#include "reknit/kernels/cuda_path.h"
#include "reknit/kernels/skinny_linear.h"

namespace reknit::ops::cuda {
namespace {

kernels::Curve curve_of(std::optional<Activation> activation) {
  if (!activation) {
    return kernels::Curve::kNone;
  }
  switch (*activation) {
    case Activation::kRelu:
      return kernels::Curve::kRelu;
    case Activation::kGelu:
      return kernels::Curve::kGelu;
    case Activation::kGeluTanh:
      return kernels::Curve::kGeluTanh;
    case Activation::kSilu:
      return kernels::Curve::kSilu;
  }
  throw StateError("an activation outside the enumeration");
}

}  // namespace

std::optional<at::Tensor> skinny_linear(const at::Tensor& x, const at::Tensor& weight,
                                        const SkinnyOptions& options) {
  if (x.size(0) == 0 || x.size(0) > kernels::kMaxSkinnyRows || x.scalar_type() == at::kFloat ||
      !x.is_contiguous() || !weight.is_contiguous()) {
    return {};
  }
  kernels::SkinnyLinear args;
  args.rows = x.size(0);
  args.in = x.size(1);
  args.out = weight.size(0);
  args.x = x.const_data_ptr();
  args.weight = weight.const_data_ptr();
  args.bias = options.bias ? options.bias->const_data_ptr() : nullptr;
  args.residual = data_or_null(options.residual);
  args.curve = curve_of(options.activation);
  args.fp32_y = options.out_dtype == at::kFloat;
  const kernels::Element element = element_of(x.scalar_type());
  if (!kernels::skinny_linear_takes(element, args)) {
    return {};
  }
  at::Tensor y = at::empty({args.rows, args.out},
                           x.options().dtype(options.out_dtype.value_or(x.scalar_type())));
  args.y = y.mutable_data_ptr();
  kernels::skinny_linear(element, args, stream_of(x));
  return y;
}

}  // namespace reknit::ops::cuda
