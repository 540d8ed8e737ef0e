// Optimizer and reduction kernels on CUDA: tensors to launchers.
#include "reknit/kernels/cuda_args.h"
#include "reknit/kernels/cuda_path.h"
#include "reknit/kernels/flat_update.h"

namespace reknit::ops::cuda {

void accumulate(const at::Tensor& dst, const at::Tensor& src) {
  kernels::accumulate(element_of(src.scalar_type()), dst.mutable_data_ptr<float>(),
                      src.const_data_ptr(), dst.numel(), stream_of(dst));
}

at::Tensor sum_squares(const at::Tensor& flat, const std::vector<UpdateRange>& ranges) {
  std::vector<kernels::Part> parts;
  for (const UpdateRange& range : ranges) {
    parts.push_back({range.begin, range.end});
  }
  const auto options = flat.options().dtype(at::kDouble);
  const auto count = static_cast<int64_t>(parts.size());
  at::Tensor sums = at::empty({count}, options);
  const at::Tensor partials = at::empty(
      {std::min<int64_t>(count, kernels::kMaxParts) * kernels::kSumSquaresPartials}, options);
  kernels::sum_squares(flat.const_data_ptr<float>(), parts, sums.mutable_data_ptr<double>(),
                       partials.mutable_data_ptr<double>(), stream_of(flat));
  return sums;
}

void flat_update(kernels::UpdateRule rule, const FlatShard& shard,
                 const kernels::RuleArrays& arrays, const at::Tensor& scales,
                 const kernels::RuleConstants& constants,
                 const std::vector<kernels::RuleRange>& ranges) {
  const at::Tensor& weight = shard.weight;
  kernels::flat_update(
      rule, arrays, weight.defined() ? element_of(weight.scalar_type()) : kernels::Element::kFp32,
      mutable_or_null(weight), scales.const_data_ptr<float>(), constants, ranges,
      stream_of(shard.master));
}

}  // namespace reknit::ops::cuda
