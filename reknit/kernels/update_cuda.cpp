// Optimizer and reduction kernels on CUDA: tensors to launchers.
#include "reknit/kernels/adam.h"
#include "reknit/kernels/cuda_args.h"
#include "reknit/kernels/cuda_path.h"

namespace reknit::ops::cuda {

void accumulate(const at::Tensor& dst, const at::Tensor& src) {
  kernels::accumulate(element_of(src.scalar_type()), dst.mutable_data_ptr<float>(),
                      src.const_data_ptr(), dst.numel(), stream_of(dst));
}

at::Tensor sum_squares(const at::Tensor& flat) {
  const auto options = flat.options().dtype(at::kDouble);
  at::Tensor sum = at::empty({1}, options);
  const at::Tensor partials = at::empty({kernels::kSumSquaresPartials}, options);
  kernels::sum_squares(flat.const_data_ptr<float>(), flat.numel(), sum.mutable_data_ptr<double>(),
                       partials.mutable_data_ptr<double>(), stream_of(flat));
  return sum;
}

void adam_update(const AdamState& state, const at::Tensor& grad, const at::Tensor& grad_scale,
                 const at::Tensor& weight, const kernels::AdamConstants& constants,
                 const std::vector<kernels::AdamRange>& ranges) {
  kernels::AdamTensors tensors;
  tensors.master = state.master.mutable_data_ptr<float>();
  tensors.exp_avg = state.exp_avg.mutable_data_ptr<float>();
  tensors.exp_avg_sq = state.exp_avg_sq.mutable_data_ptr<float>();
  tensors.grad = grad.const_data_ptr<float>();
  tensors.grad_scale = grad_scale.const_data_ptr<float>();
  tensors.weight = weight.defined() ? weight.mutable_data_ptr() : nullptr;
  kernels::adam_update(
      weight.defined() ? element_of(weight.scalar_type()) : kernels::Element::kFp32, tensors,
      constants, ranges, stream_of(state.master));
}

}  // namespace reknit::ops::cuda
