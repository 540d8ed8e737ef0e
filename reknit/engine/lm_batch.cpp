#include "reknit/engine/lm_batch.h"

#include "reknit/base/host_copy.h"
#include "reknit/base/rank.h"
#include "reknit/kernels/dropout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace reknit {
namespace {

/// Lengths of the runs that end with an end-of-document token, and of the rest.
std::vector<int64_t> documents_of(std::span<const int64_t> tokens, int64_t eod) {
  std::vector<int64_t> lengths;
  int64_t begin = 0;
  const auto size = static_cast<int64_t>(tokens.size());
  for (int64_t i = 0; i < size; ++i) {
    if (tokens[i] == eod || i + 1 == size) {
      lengths.push_back(i + 1 - begin);
      begin = i + 1;
    }
  }
  return lengths;
}

std::vector<int64_t> restarting(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> positions;
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) {
      positions.push_back(i);
    }
  }
  return positions;
}

void append(std::vector<int64_t>& to, const std::vector<int64_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

int64_t LmSequence::num_targets() const {
  return std::count_if(targets.begin(), targets.end(), [](int64_t t) { return t >= 0; });
}

LmSequence lm_sequence(std::span<const int64_t> sample, uint64_t number,
                       const DocumentRules& rules) {
  REKNIT_INVARIANT(sample.size() > 1, "a sample of ", sample.size(), " tokens teaches nothing");
  const auto inputs = sample.first(sample.size() - 1);
  LmSequence sequence{number,
                      {inputs.begin(), inputs.end()},
                      {sample.begin() + 1, sample.end()},
                      {static_cast<int64_t>(inputs.size())},
                      {}};
  if (rules.eod < 0) {
    return sequence;
  }
  if (rules.mask_loss) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      sequence.targets[i] = inputs[i] == rules.eod ? -1 : sequence.targets[i];
    }
  }
  const std::vector<int64_t> documents = documents_of(inputs, rules.eod);
  if (rules.reset_position_ids && !rules.reset_attention_mask) {
    sequence.positions = restarting(documents);
  } else if (rules.reset_attention_mask && !rules.reset_position_ids) {
    sequence.positions = restarting(sequence.lengths);
  }
  if (rules.reset_attention_mask) {
    sequence.lengths = documents;
  }
  return sequence;
}

LmBatch LmBatch::of(std::span<const LmSequence> sequences, const ModelSpec& spec,
                    const std::optional<DropoutKey>& dropout_key) {
  std::vector<int64_t> tokens, targets, lengths, positions, keys;
  for (const LmSequence& sequence : sequences) {
    append(tokens, sequence.tokens);
    append(targets, sequence.targets);
    append(lengths, sequence.lengths);
    append(positions,
           sequence.positions.empty() ? restarting(sequence.lengths) : sequence.positions);
    if (dropout_key) {
      keys.resize(tokens.size());
      ops::dropout_keys(dropout_key->seed, dropout_key->step, sequence.number,
                        std::span(keys).last(sequence.tokens.size()));
    }
  }
  if (!positions.empty()) {
    spec.require_length(*std::max_element(positions.begin(), positions.end()) + 1);
  }
  const c10::Device device = this_rank().device;
  LmBatch batch{TokenBatch::of(tokens, std::move(lengths), spec, device),
                to_device(at::tensor(targets, at::kLong), device),
                {}};
  batch.counted = batch.targets.ge(0).to(at::kFloat);
  batch.tokens.positions = to_device(at::tensor(positions, at::kLong), device);
  if (dropout_key) {
    batch.tokens.dropout_keys = to_device(at::tensor(keys, at::kLong), device);
  }
  return batch;
}

}  // namespace reknit
