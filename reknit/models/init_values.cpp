#include "reknit/models/init_values.h"

#include "reknit/base/random.h"
#include "reknit/base/rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace reknit {
namespace {

constexpr uint64_t kInitPurpose = 0x696e6974;  // "init"
constexpr int64_t kGrain = 1 << 16;            // pairs that a thread takes at a time

// FNV-1a: the key of a tensor's random stream must not change between builds.
uint64_t hash_name(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const unsigned char c : name) {
    hash = (hash ^ c) * 0x100000001b3ull;
  }
  return hash;
}

void fill_pairs(float* values, int64_t size, double std, const Philox& philox, int64_t begin,
                int64_t end) {
  for (int64_t pair = begin; pair < end; ++pair) {
    const auto normal = normal_pair(philox, static_cast<uint64_t>(pair), 0);
    values[2 * pair] = static_cast<float>(normal[0] * std);
    if (2 * pair + 1 < size) {
      values[2 * pair + 1] = static_cast<float>(normal[1] * std);
    }
  }
}

/// On this rank's share of the host's cores: billions of values would take minutes on one.
void fill_normal(float* values, int64_t size, double std, const Philox& philox) {
  const int64_t pairs = (size + 1) / 2;
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t begin = next.fetch_add(kGrain); begin < pairs; begin = next.fetch_add(kGrain)) {
      fill_pairs(values, size, std, philox, begin, std::min(begin + kGrain, pairs));
    }
  };
  const int64_t cores = std::thread::hardware_concurrency() / this_rank().world;
  std::vector<std::jthread> others;
  try {
    for (int64_t t = 1; t < std::min(cores, pairs / kGrain); ++t) {
      others.emplace_back(work);
    }
  } catch (const std::system_error&) {  // a limit on threads: those there are do the work
  }
  work();
}

}  // namespace

at::Tensor init_values(const ModelSpec& spec, const ParamSpec& param, const NamePiece& piece,
                       uint64_t seed) {
  const std::vector<int64_t> shape = stored_shape(param, piece);
  switch (init_kind(spec, param)) {
    case InitKind::kZeros:
      return at::zeros(shape, at::kFloat);
    case InitKind::kOnes:
      return at::ones(shape, at::kFloat);
    case InitKind::kNormal:
      break;
  }
  at::Tensor values = at::empty(shape, at::kFloat);
  fill_normal(values.mutable_data_ptr<float>(), values.numel(), init_std(spec, param),
              Philox{mix(mix(seed, kInitPurpose), hash_name(piece.hf_name))});
  return values;
}

}  // namespace reknit
