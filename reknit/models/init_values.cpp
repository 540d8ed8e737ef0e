#include "reknit/models/init_values.h"

#include "reknit/base/random.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace reknit {
namespace {

constexpr uint64_t kInitPurpose = 0x696e6974;  // "init"
constexpr int64_t kGrain = 1 << 14;            // pairs that are worth a thread

// FNV-1a: the key of a tensor's random stream must not change between builds.
uint64_t hash_name(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const unsigned char c : name) {
    hash = (hash ^ c) * 0x100000001b3ull;
  }
  return hash;
}

void fill_normal(float* values, int64_t size, double std, const Philox& philox) {
  at::parallel_for(0, (size + 1) / 2, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const auto normal = normal_pair(philox, static_cast<uint64_t>(pair), 0);
      values[2 * pair] = static_cast<float>(normal[0] * std);
      if (2 * pair + 1 < size) {
        values[2 * pair + 1] = static_cast<float>(normal[1] * std);
      }
    }
  });
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
