// Dropout whose mask is a pure function of the token and the place in the model: the same
// in forward, backward and recomputation, on CPU and CUDA, on any rank and in any batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace reknit::ops {

/// One place in a model where elements are dropped; off unless it has a rate and keys.
struct Dropout {
  double rate = 0;    ///< in [0, 1)
  uint64_t site = 0;  ///< the place: layer and branch; below 2^32
  at::Tensor keys;    ///< [N] int64: one for each token of the batch, see dropout_keys

  bool on() const { return rate > 0 && keys.defined(); }
};

/// The keys of the tokens of sequence number `sequence` in training step `step`: hashes of
/// all four and the place in the sequence.
void dropout_keys(uint64_t seed, uint64_t step, uint64_t sequence, std::span<int64_t> out);

/// x [N, width] with dropped elements 0 and the others divided by 1 - rate, in new memory;
/// x itself where it is off. The backward is the same function of the gradient.
at::Tensor dropout(const at::Tensor& x, const Dropout& dropout);

/// The same in place for attention, fp32, contiguous: p [n, R, C] are rows of the heads
/// [first_head, first_head + n), counted over all sequences; `keys` [sequences, R] those of
/// the rows. Every head has a mask of its own. Nothing where it is off.
void drop_scores(const at::Tensor& p, const Dropout& dropout, const at::Tensor& keys,
                 int64_t first_head, int64_t num_heads);

}  // namespace reknit::ops
