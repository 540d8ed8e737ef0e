#include "reknit/rlhf/experience.h"

#include "reknit/base/rank.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace reknit {

int64_t Experience::unmasked() const {
  return std::count(mask.begin(), mask.end(), uint8_t{1});
}

ExperienceBatch ExperienceBatch::of(std::span<const Experience> experiences) {
  std::vector<int64_t> tokens;
  std::vector<int64_t> targets;
  std::vector<int64_t> lengths;
  ExperienceBatch batch;
  for (const Experience& experience : experiences) {
    const auto first = static_cast<int64_t>(tokens.size());
    const auto length = static_cast<int64_t>(experience.tokens.size());
    tokens.insert(tokens.end(), experience.tokens.begin(), experience.tokens.end());
    for (int64_t t = 0; t < length; ++t) {
      const bool speaks = t >= experience.prompt_length - 1 && t + 1 < length;
      targets.push_back(speaks ? experience.tokens[t + 1] : -1);
      if (speaks) {
        batch.entry_rows.push_back(first + t);
      }
    }
    batch.last_rows.push_back(first + length - 1);
    lengths.push_back(length);
  }
  const auto device = this_rank().device;
  batch.tokens = {at::tensor(tokens, at::kLong).to(device), ops::Packing::of(lengths, device)};
  batch.targets = at::tensor(targets, at::kLong).to(device);
  return batch;
}

std::vector<std::vector<float>> ExperienceBatch::entries(std::span<const Experience> experiences,
                                                         const at::Tensor& per_row) const {
  const at::Tensor host = per_row.to(at::kCPU, at::kFloat).contiguous();
  const float* values = host.const_data_ptr<float>();
  std::vector<std::vector<float>> result;
  auto row = entry_rows.begin();
  for (const Experience& experience : experiences) {
    std::vector<float>& out = result.emplace_back();
    for (size_t t = 0; t < experience.answer_length(); ++t) {
      out.push_back(values[*row++]);
    }
  }
  return result;
}

at::Tensor ExperienceBatch::scatter(std::span<const float> per_entry) const {
  at::Tensor host = at::zeros({tokens.tokens.numel()}, at::kFloat);
  auto* values = host.mutable_data_ptr<float>();
  for (size_t i = 0; i < entry_rows.size(); ++i) {
    values[entry_rows[i]] = per_entry[i];
  }
  return host.to(this_rank().device);
}

}  // namespace reknit
