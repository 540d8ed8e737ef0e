#include "reknit/kernels/attention_decode_cpu.h"

#include "reknit/kernels/cpu_loops.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace reknit::ops::cpu {
namespace {

/// out[t] = q [dim] . k[t] for count rows of k, `stride` apart.
REKNIT_CPU_CLONES
void dot_rows(const float* q, const float* k, int64_t stride, int64_t count, int64_t dim,
              float* out) {
  for (int64_t t = 0; t < count; ++t) {
    const float* row = k + t * stride;
    Lanes lanes{};
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      lanes += *reinterpret_cast<const Lanes*>(q + d) * *reinterpret_cast<const Lanes*>(row + d);
    }
    float tail = 0;
    for (; d < dim; ++d) {
      tail += q[d] * row[d];
    }
    for (int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (int64_t l = 0; l < width; ++l) {
        lanes[l] += lanes[l + width];
      }
    }
    out[t] = lanes[0] + tail;
  }
}

/// out [dim] = sum of p[t] v[t] over count rows of v, `stride` apart.
REKNIT_CPU_CLONES
void mix_rows(const float* p, const float* v, int64_t stride, int64_t count, int64_t dim,
              float* out) {
  std::fill(out, out + dim, 0.0f);
  for (int64_t t = 0; t < count; ++t) {
    const float* row = v + t * stride;
    for (int64_t d = 0; d < dim; ++d) {
      out[d] += p[t] * row[d];
    }
  }
}

/// scores -> probabilities in place, over tokens 0..count-1 seen from the last one.
void softmax(float* scores, int64_t count, float scale, float slope) {
  float top = -std::numeric_limits<float>::infinity();
  for (int64_t t = 0; t < count; ++t) {
    scores[t] = scores[t] * scale + slope * static_cast<float>(t - count + 1);
    top = std::max(top, scores[t]);
  }
  float total = 0;
  for (int64_t t = 0; t < count; ++t) {
    scores[t] = std::exp(scores[t] - top);
    total += scores[t];
  }
  for (int64_t t = 0; t < count; ++t) {
    scores[t] /= total;
  }
}

/// Rows as fp32: the rows themselves, or a converted copy in `buffer`.
struct Rows {
  const float* first;
  int64_t stride;
};

template <class T>
Rows as_float(const T* first, int64_t stride, int64_t count, int64_t dim,
              std::vector<float>& buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return {first, stride};
  } else {
    buffer.resize(count * dim);
    for (int64_t t = 0; t < count; ++t) {
      std::copy(first + t * stride, first + t * stride + dim, buffer.begin() + t * dim);
    }
    return {buffer.data(), dim};
  }
}

/// One sequence: all heads over the first `count` tokens of its slot.
template <class T>
void attend_one(const T* q, int64_t q_stride, const T* k, const T* v, int64_t num_heads,
                int64_t num_kv_heads, int64_t dim, int64_t count, float scale, const float* slopes,
                T* out) {
  const int64_t shared = num_heads / num_kv_heads;
  const int64_t stride = num_kv_heads * dim;
  std::vector<float> key_buffer, value_buffer, query_buffer;
  std::vector<float> weights(count), mixed(dim);
  for (int64_t kv = 0; kv < num_kv_heads; ++kv) {
    const Rows keys = as_float(k + kv * dim, stride, count, dim, key_buffer);
    const Rows values = as_float(v + kv * dim, stride, count, dim, value_buffer);
    for (int64_t a = kv * shared; a < (kv + 1) * shared; ++a) {
      const Rows query = as_float(q + a * q_stride, dim, 1, dim, query_buffer);
      dot_rows(query.first, keys.first, keys.stride, count, dim, weights.data());
      softmax(weights.data(), count, scale, slopes == nullptr ? 0.0f : slopes[a]);
      mix_rows(weights.data(), values.first, values.stride, count, dim, mixed.data());
      std::copy(mixed.begin(), mixed.end(), out + a * dim);
    }
  }
}

template <class T>
void copy_rows(const T* from, int64_t stride, int64_t count, int64_t dim, T* to) {
  for (int64_t i = 0; i < count; ++i) {
    std::copy(from + i * stride, from + i * stride + dim, to + i * dim);
  }
}

}  // namespace

void attention_decode(const Heads& in, const KvLayer& cache, const at::Tensor& slots,
                      const at::Tensor& lengths, double scale, const at::Tensor& slopes,
                      const at::Tensor& out) {
  const int64_t num_heads = in.q.size(1);
  const int64_t num_kv_heads = in.k.size(1);
  const int64_t dim = in.q.size(2);
  const int64_t capacity = cache.k.size(1);
  const int64_t token = num_kv_heads * dim;
  const auto* slot_of = slots.const_data_ptr<int64_t>();
  const auto* length_of = lengths.const_data_ptr<int64_t>();
  const float* slope = slopes.defined() ? slopes.const_data_ptr<float>() : nullptr;
  with_type(in.q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t b = 0; b < in.q.size(0); ++b) {
      const int64_t length = length_of[b];
      REKNIT_INVARIANT(
          slot_of[b] >= 0 && slot_of[b] < cache.k.size(0) && length >= 0 && length < capacity,
          "token ", length, " of slot ", slot_of[b], " in a cache of ", cache.k.size(0),
          " slots of ", capacity);
      T* keys = cache.k.mutable_data_ptr<T>() + slot_of[b] * capacity * token;
      T* values = cache.v.mutable_data_ptr<T>() + slot_of[b] * capacity * token;
      copy_rows(in.k.const_data_ptr<T>() + b * in.k.stride(0), in.k.stride(1), num_kv_heads, dim,
                keys + length * token);
      copy_rows(in.v.const_data_ptr<T>() + b * in.v.stride(0), in.v.stride(1), num_kv_heads, dim,
                values + length * token);
      attend_one(in.q.const_data_ptr<T>() + b * in.q.stride(0), in.q.stride(1), keys, values,
                 num_heads, num_kv_heads, dim, length + 1, static_cast<float>(scale), slope,
                 out.mutable_data_ptr<T>() + b * num_heads * dim);
    }
  });
}

}  // namespace reknit::ops::cpu
