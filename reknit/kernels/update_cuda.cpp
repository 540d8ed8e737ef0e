// Optimizer and reduction kernels on CUDA: tensors to launchers.
#include "reknit/kernels/adam.h"
#include "reknit/kernels/adam_fold.h"
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
                 const at::Tensor& weight, const AdamStep& step,
                 const std::vector<UpdateRange>& ranges) {
  const bool rounds = weight.defined() && weight.const_data_ptr() != state.master.const_data_ptr();
  kernels::AdamTensors tensors;
  tensors.master = state.master.mutable_data_ptr<float>();
  tensors.exp_avg = state.exp_avg.mutable_data_ptr<float>();
  tensors.exp_avg_sq = state.exp_avg_sq.mutable_data_ptr<float>();
  tensors.grad = grad.const_data_ptr<float>();
  tensors.grad_scale = grad_scale.const_data_ptr<float>();
  tensors.weight = rounds ? weight.mutable_data_ptr() : nullptr;
  std::vector<kernels::AdamRange> folded;
  for (const UpdateRange& range : ranges) {
    const AdamRange r = fold(step, range);
    const bool continues = !folded.empty() && folded.back().end == r.begin &&
                           folded.back().l2 == r.l2 && folded.back().keep == r.keep &&
                           folded.back().rate == r.rate;
    if (continues) {
      folded.back().end = r.end;
    } else {
      folded.push_back({r.begin, r.end, r.l2, r.keep, r.rate});
    }
  }
  const AdamConstants c = fold(step);
  kernels::adam_update(rounds ? element_of(weight.scalar_type()) : kernels::Element::kFp32, tensors,
                       {c.beta1, c.beta2, c.v_scale, c.eps}, folded, stream_of(state.master));
}

}  // namespace reknit::ops::cuda
