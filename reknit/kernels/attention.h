// Causal attention over packed sequences, and over a key-value cache.
//
// Legend: B sequences; N tokens of all of them, packed; A query heads; K key-value
// heads (A % K == 0); D head size. Conventions of ops.h hold.
#pragma once

#include "reknit/kernels/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reknit::ops {

/// Lengths of packed sequences. Sequence b is rows [offsets[b], offsets[b+1]).
struct Packing {
  std::vector<int64_t> lengths;  ///< host; each >= 0
  std::vector<int64_t> offsets;  ///< host; B + 1 entries, offsets[B] = N
  at::Tensor offsets_device;     ///< [B + 1] int32, on the device of the tokens
  at::Tensor positions;          ///< [N] int64: place of each token in its sequence
  int64_t max_length = 0;

  static Packing of(std::vector<int64_t> lengths, c10::Device device);
  int64_t num_tokens() const { return offsets.back(); }
  int64_t num_sequences() const { return static_cast<int64_t>(lengths.size()); }
};

/// How query, key and value lie in a row of qkv [N, (A + 2K) D].
struct HeadLayout {
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 1;
  /// false: [q of all heads | k of all | v of all] (OPT, GPT-2);
  /// true: per head [q | k | v] (BLOOM; needs K == A).
  bool interleaved = false;
};

/// The head slopes of ALiBi (Press et al., "Train short, test long", 2022), [num_heads]
/// fp32 on CPU: powers of 2^(-8 / n) for n = num_heads a power of two, otherwise those
/// of the next lower power of two followed by every other one of the next higher.
at::Tensor alibi_slopes(int64_t num_heads);

struct AttentionOut {
  at::Tensor out;  ///< [N, A D]
  at::Tensor lse;  ///< fp32, log of the sums of exponentials; only the backward reads it
};

/// softmax(scale q k^T + slope_a (j - i) [where slopes are given], j <= i) v inside
/// each sequence. `slopes` [A] fp32 (ALiBi) or undefined. `dropout` drops probabilities; on
/// CUDA it takes the path that holds them in memory.
AttentionOut attention(const at::Tensor& qkv, const HeadLayout& heads, const Packing& packing,
                       double scale, const at::Tensor& slopes, const Dropout& dropout = {});
/// -> d_qkv, laid out as qkv. On a GPU in 16 bits the order of its sums is free unless
/// fix_order_of_gpu_sums(true).
at::Tensor attention_backward(const at::Tensor& d_out, const at::Tensor& qkv,
                              const AttentionOut& saved, const HeadLayout& heads,
                              const Packing& packing, double scale, const at::Tensor& slopes,
                              const Dropout& dropout = {});

/// One layer's cache: k and v are [S, L, K, D], S slots of L tokens.
struct KvLayer {
  at::Tensor k;
  at::Tensor v;
  /// No sequence of this generation grows past it (0: L): what decode looks through.
  int64_t used = 0;
};

/// Copies keys and values of qkv (packed prompts) to the start of the slots
/// `slots` [B] int64: token t of sequence b goes to [slots[b], t].
void cache_prompts(const at::Tensor& qkv, const HeadLayout& heads, const Packing& packing,
                   const at::Tensor& slots, const KvLayer& cache);

/// One new token for each of B sequences: qkv [B, (A + 2K) D]. Writes its key and
/// value to [slots[b], lengths[b]] and attends over lengths[b] + 1 tokens -> [B, A D].
/// `slots`, `lengths` [B] int64 on the device; no host synchronisation.
at::Tensor attention_decode(const at::Tensor& qkv, const HeadLayout& heads, const KvLayer& cache,
                            const at::Tensor& slots, const at::Tensor& lengths, double scale,
                            const at::Tensor& slopes);

}  // namespace reknit::ops
