#include "reknit/data/gpt_dataset.h"

#include <algorithm>

#include "reknit/base/error.h"
#include "reknit/base/random.h"

namespace reknit {
namespace {

constexpr uint64_t kSequencePurpose = 0x73657173;  // "seqs"
constexpr uint64_t kSamplePurpose = 0x736D706C;    // "smpl"
constexpr size_t kEpochsKept = 2;

uint64_t epoch_key(uint64_t seed, uint64_t purpose, int64_t epoch) {
  return mix(mix(seed, purpose), static_cast<uint64_t>(epoch));
}

}  // namespace

GptDataset::GptDataset(std::shared_ptr<const TokenFile> file, SequenceRange range,
                       GptDatasetSpec spec)
    : file_(std::move(file)), range_(range), spec_(spec) {
  REKNIT_INVARIANT(range.begin >= 0 && range.begin <= range.end &&
                       range.end <= file_->sequences() && spec.sequence_length >= 1,
                   "sequences ", range.begin, " to ", range.end, ", length ", spec.sequence_length);
  for (int64_t i = range.begin; i < range.end; ++i) {
    tokens_ += file_->length(i);
  }
  if (tokens_ == 0) {
    throw InputError(str(file_->prefix(), ": sequences ", range.begin, " to ", range.end,
                         " hold no tokens, so no sample can be cut from them"),
                     "leave the data set out, or change --split");
  }
}

int64_t GptDataset::samples_in(int64_t epochs) const {
  return std::max<int64_t>(epochs * tokens_ - 1, 0) / spec_.sequence_length;
}

int64_t GptDataset::epochs_for(int64_t samples) const {
  return (samples * spec_.sequence_length + 1 + tokens_ - 1) / tokens_;
}

int64_t GptDataset::first_place(int64_t epoch) const {
  return (epoch * tokens_ + spec_.sequence_length - 1) / spec_.sequence_length;
}

RandomOrder GptDataset::sequence_order(int64_t epoch) const {
  return RandomOrder(epoch_key(spec_.seed, kSequencePurpose, epoch), range_.size());
}

int64_t GptDataset::sequence_in(const RandomOrder& order, int64_t position) const {
  return range_.begin + (spec_.shuffle ? order(position) : position);
}

std::shared_ptr<const GptDataset::Epoch> GptDataset::make_epoch(int64_t number) const {
  const RandomOrder order = sequence_order(number);
  auto epoch = std::make_shared<Epoch>();
  epoch->number = number;
  epoch->starts.reserve((range_.size() + kStride - 1) / kStride);
  int64_t tokens = 0;
  for (int64_t position = 0; position < range_.size(); ++position) {
    if (position % kStride == 0) {
      epoch->starts.push_back(tokens);
    }
    tokens += file_->length(sequence_in(order, position));
  }
  return epoch;
}

std::shared_ptr<const GptDataset::Epoch> GptDataset::epoch(int64_t number) const {
  number = spec_.shuffle ? number : 0;
  const std::lock_guard lock(mutex_);
  auto found = std::find_if(epochs_.begin(), epochs_.end(),
                            [&](const auto& epoch) { return epoch->number == number; });
  if (found == epochs_.end()) {
    if (epochs_.size() == kEpochsKept) {
      epochs_.erase(epochs_.begin());
    }
    found = epochs_.insert(epochs_.end(), make_epoch(number));
  }
  std::rotate(found, found + 1, epochs_.end());
  return epochs_.back();
}

GptDataset::Row GptDataset::row(int64_t place) const {
  const int64_t token = place * spec_.sequence_length;
  const int64_t number = token / tokens_;
  const int64_t wanted = token % tokens_;
  const std::shared_ptr<const Epoch> epoch = this->epoch(number);
  const auto after = std::upper_bound(epoch->starts.begin(), epoch->starts.end(), wanted);
  const int64_t block = after - epoch->starts.begin() - 1;
  const RandomOrder order = sequence_order(number);
  int64_t position = block * kStride;
  int64_t begin = epoch->starts[block];
  while (true) {
    const int64_t length = file_->length(sequence_in(order, position));
    if (begin + length > wanted) {
      return {number * range_.size() + position, wanted - begin};
    }
    begin += length;
    ++position;
  }
}

int64_t GptDataset::sequence_at(int64_t position) const {
  return sequence_in(sequence_order(position / range_.size()), position % range_.size());
}

int64_t GptDataset::place_of(int64_t sample) const {
  REKNIT_INVARIANT(sample >= 0, "sample ", sample);
  if (!spec_.shuffle) {
    return sample;
  }
  const int64_t epoch = sample * spec_.sequence_length / tokens_;
  const int64_t first = first_place(epoch);
  const RandomOrder order(epoch_key(spec_.seed, kSamplePurpose, epoch),
                          first_place(epoch + 1) - first);
  return first + order(sample - first);
}

void GptDataset::check_tokens(int64_t sequence, int64_t first,
                              std::span<const int64_t> tokens) const {
  const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                [&](int64_t token) { return token >= spec_.vocabulary_size; });
  if (bad != tokens.end() && spec_.vocabulary_size > 0) {
    throw InputError(
        str(file_->prefix(), ": token ", first + (bad - tokens.begin()), " of sequence ", sequence,
            " is ", *bad, ", outside the model's vocabulary of ", spec_.vocabulary_size),
        "the data was written with another tokenizer; build it again with the model's");
  }
}

void GptDataset::read(int64_t sample, std::span<int64_t> out) const {
  REKNIT_INVARIANT(static_cast<int64_t>(out.size()) == spec_.sequence_length + 1, "a sample has ",
                   spec_.sequence_length + 1, " tokens, not ", out.size());
  auto [position, offset] = row(place_of(sample));
  RandomOrder order = sequence_order(position / range_.size());
  while (true) {
    const int64_t sequence = sequence_in(order, position % range_.size());
    const int64_t count =
        std::min(file_->length(sequence) - offset, static_cast<int64_t>(out.size()));
    const std::span<int64_t> part = out.first(count);
    file_->read(sequence, offset, part);
    check_tokens(sequence, offset, part);
    out = out.subspan(count);
    if (out.empty()) {
      return;
    }
    offset = 0;
    if (++position % range_.size() == 0) {
      order = sequence_order(position / range_.size());
    }
  }
}

}  // namespace reknit
