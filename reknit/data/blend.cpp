#include "reknit/data/blend.h"

#include <algorithm>

#include "reknit/base/error.h"

namespace reknit {
namespace {

constexpr size_t kChunksKept = 2;

}  // namespace

BlendedDataset::BlendedDataset(std::vector<Source> sources) : sources_(std::move(sources)) {
  REKNIT_INVARIANT(!sources_.empty(), "a blend of no data sets");
  double sum = 0;
  for (const Source& source : sources_) {
    REKNIT_INVARIANT(source.weight > 0 && source.data->sequence_length() == sequence_length(),
                     "weight ", source.weight, ", length ", source.data->sequence_length());
    sum += source.weight;
  }
  for (Source& source : sources_) {
    source.weight /= sum;
  }
  taken_.emplace_back(sources_.size(), 0);
}

BlendedDataset::Choice BlendedDataset::next(int64_t sample, std::vector<int64_t>& taken) const {
  const auto due = static_cast<double>(std::max<int64_t>(sample, 1));
  size_t chosen = 0;
  double most_behind = -1e300;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const double behind = sources_[i].weight * due - static_cast<double>(taken[i]);
    if (behind > most_behind) {
      most_behind = behind;
      chosen = i;
    }
  }
  return {static_cast<int64_t>(chosen), taken[chosen]++};
}

std::shared_ptr<const BlendedDataset::Chunk> BlendedDataset::chunk(int64_t number) const {
  const std::lock_guard lock(mutex_);
  auto found = std::find_if(chunks_.begin(), chunks_.end(),
                            [&](const auto& chunk) { return chunk->number == number; });
  if (found == chunks_.end()) {
    auto made = std::make_shared<Chunk>();
    made->number = number;
    made->choices.reserve(kChunk);
    for (int64_t i = std::min<int64_t>(number, std::ssize(taken_) - 1); i <= number; ++i) {
      std::vector<int64_t> taken = taken_[i];
      for (int64_t sample = i * kChunk; sample < (i + 1) * kChunk; ++sample) {
        const Choice choice = next(sample, taken);
        if (i == number) {
          made->choices.push_back(choice);
        }
      }
      if (i + 1 == std::ssize(taken_)) {
        taken_.push_back(std::move(taken));
      }
    }
    if (chunks_.size() == kChunksKept) {
      chunks_.erase(chunks_.begin());
    }
    found = chunks_.insert(chunks_.end(), std::move(made));
  }
  std::rotate(found, found + 1, chunks_.end());
  return chunks_.back();
}

BlendedDataset::Choice BlendedDataset::choice(int64_t sample) const {
  REKNIT_INVARIANT(sample >= 0, "sample ", sample);
  if (sources_.size() == 1) {
    return {0, sample};
  }
  return chunk(sample / kChunk)->choices[sample % kChunk];
}

void BlendedDataset::read(int64_t sample, std::span<int64_t> out) const {
  const Choice chosen = choice(sample);
  sources_[chosen.source].data->read(chosen.sample, out);
}

TokenBlend::TokenBlend(const std::vector<BlendEntry>& entries) : entries_(entries) {
  for (const BlendEntry& entry : entries_) {
    files_.push_back(TokenFile::open(entry.prefix));
  }
}

std::shared_ptr<const BlendedDataset> TokenBlend::part(std::string_view split, Part part,
                                                       const GptDatasetSpec& spec) const {
  std::vector<BlendedDataset::Source> sources;
  for (size_t i = 0; i < files_.size(); ++i) {
    const SequenceRange range =
        split_ranges(split, files_[i]->sequences())[static_cast<size_t>(part)];
    if (range.size() > 0) {
      sources.push_back(
          {entries_[i].weight, std::make_shared<const GptDataset>(files_[i], range, spec)});
    }
  }
  return sources.empty() ? nullptr : std::make_shared<const BlendedDataset>(std::move(sources));
}

}  // namespace reknit
