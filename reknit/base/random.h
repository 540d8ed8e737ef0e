// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). A number is a pure function of its key
// and counter, so it never depends on rank, batch place, thread or time.
#pragma once

#include <array>
#include <cstdint>

#ifdef __CUDACC__
#define REKNIT_HOST_DEVICE __host__ __device__
#else
#define REKNIT_HOST_DEVICE
#endif

namespace reknit {

struct Philox {
  uint64_t key;

  /// Four independent 32-bit words for counter (low, high).
  REKNIT_HOST_DEVICE void block(uint64_t low, uint64_t high, uint32_t out[4]) const {
    uint32_t c[4] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                     static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
    uint32_t k0 = static_cast<uint32_t>(key);
    uint32_t k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c[0];
      const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c[2];
      const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
      const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
      c[1] = static_cast<uint32_t>(p1);
      c[3] = static_cast<uint32_t>(p0);
      c[0] = n0;
      c[2] = n2;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; ++i) {
      out[i] = c[i];
    }
  }

  /// Uniform in [0, 1), 53 random bits, of counter (low, high).
  REKNIT_HOST_DEVICE double uniform(uint64_t low, uint64_t high) const {
    uint32_t w[4];
    block(low, high, w);
    const uint64_t bits = (static_cast<uint64_t>(w[0]) << 21) ^ (w[1] >> 11);
    return static_cast<double>(bits & ((1ull << 53) - 1)) * 0x1.0p-53;
  }
};

/// A 64-bit hash of two words (SplitMix64's finaliser); chains build keys such as
/// mix(mix(seed, purpose), sequence).
REKNIT_HOST_DEVICE inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a + 0x9E3779B97F4A7C15ull * (b + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/// Two standard normal values of counter (low, high) (Box-Muller; host only).
std::array<double, 2> normal_pair(Philox philox, uint64_t low, uint64_t high);

}  // namespace reknit
