// Attention of one new token a sequence over the key-value cache, on CUDA; cache writes.
#pragma once

#include "reknit/kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reknit::kernels {

/// Elements between rows and between heads of q, k or v inside qkv.
struct HeadStrides {
  int64_t row = 0;
  int64_t head = 0;
};

/// One layer's cache: k and v are [slots, capacity, num_kv_heads, head_dim], contiguous.
struct Cache {
  void* k = nullptr;
  void* v = nullptr;
  int64_t slots = 0;
  int64_t capacity = 0;
  int64_t used = 0;  ///< at most `capacity`: no sequence grows past it; 0: the capacity
};

struct DecodeAttention {
  int64_t batch = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  ///< at most kMaxHeadDim
  float scale = 0;
  const void* q = nullptr;  ///< rows of the new tokens
  const void* k = nullptr;
  const void* v = nullptr;
  HeadStrides q_strides;
  HeadStrides kv_strides;
  Cache cache;
  const int64_t* slot_of = nullptr;    ///< [batch]
  const int64_t* length_of = nullptr;  ///< [batch]: tokens cached before the new one
  const float* slopes = nullptr;       ///< [num_heads] or null
  void* out = nullptr;                 ///< [batch, num_heads, head_dim]
  float* scratch = nullptr;            ///< decode_scratch(args) floats
};

constexpr int64_t kMaxHeadDim = 256;

/// Floats of scratch; 0 where the cache is short enough for one pass.
int64_t decode_scratch(const DecodeAttention& args);

/// Writes the new keys and values to the cache and attends over them and all before.
/// Bits depend on the sequence alone, not on the batch or the capacity. A slot or
/// length outside the cache, or past `used`, gives NaN and writes nothing. No host synchronisation.
void decode_attention(Element element, const DecodeAttention& args, cudaStream_t stream);

struct CachePrompts {
  int64_t tokens = 0;
  int64_t batch = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  const void* k = nullptr;
  const void* v = nullptr;
  HeadStrides kv_strides;
  Cache cache;
  const int32_t* offsets = nullptr;  ///< [batch + 1]
  const int64_t* slot_of = nullptr;  ///< [batch]
};

/// Token t of sequence b goes to [slot_of[b], t]; tokens past the slot are left out.
void cache_prompts(Element element, const CachePrompts& args, cudaStream_t stream);

}  // namespace reknit::kernels
