#include "reknit/kernels/dropout.h"

#include "reknit/kernels/cpu_loops.h"
#include "reknit/kernels/cuda_path.h"
#include "reknit/kernels/dropout_rule.h"

#include <algorithm>
#include <cmath>

namespace reknit::ops {
namespace {

kernels::DropoutRule rule_of(const Dropout& dropout) {
  REKNIT_INVARIANT(dropout.rate < 1, "dropout at a rate of ", dropout.rate);
  return {static_cast<uint32_t>(dropout.rate * 0x1.0p32),
          static_cast<float>(1.0 / (1.0 - dropout.rate)), dropout.site};
}

template <class T>
void drop_rows(const kernels::DropoutRule& rule, const kernels::DropoutRows& rows) {
  constexpr int64_t kPack = kernels::DropoutRule::kPack;
  const T* x = static_cast<const T*>(rows.x);
  T* y = static_cast<T*>(rows.y);
  uint32_t words[kPack];
  for (int64_t row = 0; row < rows.heads * rows.rows; ++row) {
    const uint64_t key = rows.key(row);
    const uint64_t head = rows.head(row);
    for (int64_t begin = 0; begin < rows.width; begin += kPack) {
      rule.words(key, head, static_cast<uint64_t>(begin / kPack), words);
      const int64_t count = std::min(kPack, rows.width - begin);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = row * rows.width + begin + i;
        y[at] = rule.keeps(words[i]) ? static_cast<T>(static_cast<float>(x[at]) * rule.scale)
                                     : static_cast<T>(0.0f);
      }
    }
  }
}

void drop(const at::Tensor& x, const at::Tensor& y, const Dropout& dropout,
          kernels::DropoutRows rows) {
  rows.x = x.const_data_ptr();
  rows.y = y.mutable_data_ptr();
  if (x.is_cuda()) {
    cuda::drop_rows(x.scalar_type(), rule_of(dropout), rows, x);
    return;
  }
  cpu::with_type(x.scalar_type(),
                 [&](auto zero) { drop_rows<decltype(zero)>(rule_of(dropout), rows); });
}

}  // namespace

void dropout_keys(uint64_t seed, uint64_t step, uint64_t sequence, std::span<int64_t> out) {
  constexpr uint64_t kPurpose = 0x64726f70;  // "drop"
  const uint64_t key = mix(mix(mix(seed, kPurpose), step), sequence);
  for (size_t position = 0; position < out.size(); ++position) {
    out[position] = static_cast<int64_t>(mix(key, position));
  }
}

at::Tensor dropout(const at::Tensor& x, const Dropout& dropout) {
  if (!dropout.on() || x.numel() == 0) {
    return x;
  }
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  kernels::DropoutRows rows;
  rows.keys = dropout.keys.const_data_ptr<int64_t>();
  rows.rows = in.size(0);
  rows.width = in.size(1);
  REKNIT_INVARIANT(dropout.keys.size(0) == rows.rows, dropout.keys.size(0), " keys for ", rows.rows,
                   " tokens");
  drop(in, out, dropout, rows);
  return out;
}

void drop_scores(const at::Tensor& p, const Dropout& dropout, const at::Tensor& keys,
                 int64_t first_head, int64_t num_heads) {
  if (!dropout.on() || p.numel() == 0) {
    return;
  }
  REKNIT_INVARIANT(p.is_contiguous() && keys.is_contiguous() && keys.size(1) == p.size(1),
                   "attention dropout over ", p.sizes(), " with keys ", keys.sizes());
  kernels::DropoutRows rows;
  rows.keys = keys.const_data_ptr<int64_t>();
  rows.heads = p.size(0);
  rows.rows = p.size(1);
  rows.width = p.size(2);
  rows.first_head = first_head;
  rows.num_heads = num_heads;
  rows.by_head = true;
  drop(p, p, dropout, rows);
}

}  // namespace reknit::ops
