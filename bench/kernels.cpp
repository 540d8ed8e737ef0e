// How near do the CUDA kernels come to what the device allows?
//
// Prints a table: kernel, shape, time, achieved rate, share of the limit. Limits are
// measured here: a device copy for memory, a large product for arithmetic.
#include "reknit/base/param_view.h"
#include "reknit/base/rank.h"
#include "reknit/base/stream.h"
#include "reknit/kernels/attention.h"
#include "reknit/kernels/lm_head.h"
#include "reknit/kernels/ops.h"
#include "reknit/kernels/update.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace reknit {
namespace {

const c10::Device kDevice(c10::kCUDA, 0);
constexpr int kRepeats = 20;

struct AlwaysReadable : ReadGuard {
  void require_readable(const std::string&, uint64_t, uint64_t) const override {}
};

ParamView view(const at::Tensor& value) {
  static const std::string name = "bench";
  static const auto guard = std::make_shared<AlwaysReadable>();
  return ParamView(&name, value, guard, 0, 0);
}

at::Tensor normal(std::vector<int64_t> shape, at::ScalarType dtype) {
  return at::randn(shape, at::device(kDevice).dtype(dtype));
}

/// Seconds of one call: the least of five means of `kRepeats` calls.
double seconds(const std::function<void()>& call) {
  const Stream stream = Stream::current(kDevice);
  double best = 1e30;
  for (int round = 0; round < 6; ++round) {  // the first one warms up
    c10::Event begin(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    begin.record(*stream.native());
    for (int i = 0; i < kRepeats; ++i) {
      call();
    }
    end.record(*stream.native());
    end.synchronize();
    if (round > 0) {
      best = std::min(best, begin.elapsedTime(end) / 1e3 / kRepeats);
    }
  }
  return best;
}

struct Limits {
  double bytes_per_second;
  double flops_per_second;
};

Limits measure_limits() {
  const at::Tensor from = normal({1 << 29}, at::kHalf);
  const at::Tensor to = at::empty_like(from);
  const at::Tensor a = normal({8192, 8192}, at::kBFloat16);
  const double copy = seconds([&] { to.copy_(from); });
  const double product = seconds([&] { at::mm(a, a); });
  return {2.0 * static_cast<double>(from.nbytes()) / copy, 2.0 * 8192 * 8192 * 8192 / product};
}

void row(const std::string& kernel, const std::string& shape, double time, double work,
         double limit, const char* unit, double per_unit) {
  std::printf("%-26s %-34s %9.1f us %9.1f %-7s %5.1f %%\n", kernel.c_str(), shape.c_str(),
              time * 1e6, work / time / per_unit, unit, 100 * work / time / limit);
}

void by_bytes(const std::string& kernel, const std::string& shape, double bytes,
              const Limits& limits, const std::function<void()>& call) {
  row(kernel, shape, seconds(call), bytes, limits.bytes_per_second, "GB/s", 1e9);
}

void by_flops(const std::string& kernel, const std::string& shape, double flops,
              const Limits& limits, const std::function<void()>& call) {
  row(kernel, shape, seconds(call), flops, limits.flops_per_second, "TFLOP/s", 1e12);
}

void layer_norm(const Limits& limits, int64_t width) {
  const int64_t rows = 8 * 2048;
  const std::string shape = str(rows, " x ", width, " bf16");
  const at::Tensor x = normal({rows, width}, at::kBFloat16);
  const at::Tensor dy = normal({rows, width}, at::kBFloat16);
  const at::Tensor weight = normal({width}, at::kBFloat16);
  const at::Tensor d_weight = at::zeros_like(weight);
  const ops::Normed saved = ops::layer_norm(x, view(weight), view(weight), 1e-5);
  const auto bytes = static_cast<double>(x.nbytes());
  by_bytes("layer norm", shape, 2 * bytes, limits,
           [&] { ops::layer_norm(x, view(weight), view(weight), 1e-5); });
  by_bytes("layer norm backward", shape, 3 * bytes, limits,
           [&] { ops::layer_norm_backward(dy, x, saved, view(weight), d_weight, d_weight); });
}

void linear_backward(const Limits& limits) {
  const at::Tensor x = normal({16384, 2048}, at::kBFloat16);
  const at::Tensor dy = normal({16384, 8192}, at::kBFloat16);
  const at::Tensor weight = normal({8192, 2048}, at::kBFloat16);
  const at::Tensor d_weight = at::zeros_like(weight);
  const at::Tensor d_bias = normal({8192}, at::kBFloat16);
  by_flops("linear backward with bias", "16384 x 2048 -> 8192 bf16", 4.0 * 16384 * 2048 * 8192,
           limits, [&] { ops::linear_backward(dy, x, view(weight), d_weight, d_bias); });
}

void embedding_backward(const Limits& limits) {
  const at::Tensor dy = normal({16384, 2048}, at::kBFloat16);
  const at::Tensor d_table = at::zeros({50272, 2048}, dy.options());
  const at::Tensor ids = at::randint(50272, {16384}, dy.options().dtype(at::kLong));
  const at::Tensor same = at::zeros_like(ids);
  const double bytes = 3.0 * static_cast<double>(dy.nbytes());
  by_bytes("embedding backward", "16384 tokens", bytes, limits,
           [&] { ops::embedding_backward(dy, ids, d_table); });
  by_bytes("embedding backward", "16384 times one token", bytes / 3, limits,
           [&] { ops::embedding_backward(dy, same, d_table); });
}

void attention(const Limits& limits, int64_t batch, int64_t length, int64_t heads, int64_t dim,
               bool alibi) {
  const ops::HeadLayout layout{heads, heads, dim, alibi};
  const ops::Packing packing =
      ops::Packing::of(std::vector<int64_t>(static_cast<size_t>(batch), length), kDevice);
  const at::Tensor qkv = normal({batch * length, 3 * heads * dim}, at::kBFloat16);
  const at::Tensor d_out = normal({batch * length, heads * dim}, at::kBFloat16);
  const at::Tensor slopes = alibi ? ops::alibi_slopes(heads).to(kDevice) : at::Tensor();
  const ops::AttentionOut saved = ops::attention(qkv, layout, packing, 0.125, slopes);
  const double flops = 2.0 * static_cast<double>(batch * heads * length * length * dim);
  const std::string shape =
      str("b", batch, " s", length, " h", heads, " d", dim, alibi ? " ALiBi" : "", " bf16");
  by_flops("attention", shape, flops, limits,
           [&] { ops::attention(qkv, layout, packing, 0.125, slopes); });
  by_flops("attention backward", shape, 2.5 * flops, limits,
           [&] { ops::attention_backward(d_out, qkv, saved, layout, packing, 0.125, slopes); });
}

void decode(const Limits& limits, int64_t batch, int64_t length, ops::HeadLayout heads,
            bool alibi) {
  const std::vector<int64_t> shape = {batch, length, heads.num_kv_heads, heads.head_dim};
  const ops::KvLayer cache{normal(shape, at::kBFloat16), normal(shape, at::kBFloat16)};
  const at::Tensor qkv =
      normal({batch, (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim}, at::kBFloat16);
  const auto options = qkv.options().dtype(at::kLong);
  const at::Tensor slots = at::arange(batch, options);
  const at::Tensor lengths = at::full({batch}, length - 1, options);
  const at::Tensor slopes = alibi ? ops::alibi_slopes(heads.num_heads).to(kDevice) : at::Tensor();
  by_bytes("decode attention",
           str("b", batch, " S", length, " h", heads.num_heads, "/", heads.num_kv_heads, " d",
               heads.head_dim, alibi ? " ALiBi" : ""),
           2.0 * static_cast<double>(cache.k.nbytes()), limits,
           [&] { ops::attention_decode(qkv, heads, cache, slots, lengths, 0.125, slopes); });
}

void sampling(const Limits& limits, int64_t batch, const std::string& how,
              const ops::SampleSettings& settings) {
  const at::Tensor logits = normal({batch, 50272}, at::kFloat) * 2;
  const auto options = logits.options().dtype(at::kLong);
  const at::Tensor keys = at::arange(batch, options);
  const at::Tensor zeros = at::zeros({batch}, options);
  by_bytes("sampling", str("b", batch, " V50272 ", how), static_cast<double>(logits.nbytes()),
           limits, [&] { ops::sample(logits, settings, keys, zeros, zeros, 2); });
}

void adam(const Limits& limits) {
  const int64_t n = int64_t{1} << 28;
  const at::Tensor grad = normal({n}, at::kFloat);
  const at::Tensor weight = at::empty({n}, at::device(kDevice).dtype(at::kBFloat16));
  const ops::FlatShard shard{
      normal({n}, at::kFloat),
      grad,
      weight,
      {at::zeros({n}, at::device(kDevice)), at::zeros({n}, at::device(kDevice))}};
  const at::Tensor one = at::ones({1}, at::device(kDevice));
  std::vector<ops::UpdateRange> ranges;
  for (int64_t i = 0; i < 256; ++i) {
    ranges.push_back({i * (n / 256), (i + 1) * (n / 256), i % 2 == 0 ? 0.1 : 0.0});
  }
  const auto elements = static_cast<double>(n);
  by_bytes("adam update", "2^28, 256 ranges, bf16 weight", 30 * elements, limits,
           [&] { ops::adam_update(shard, one, {}, ranges); });
  by_bytes("sum of squares", "2^28", 4 * elements, limits, [&] { ops::sum_squares(grad); });
  by_bytes("accumulate", "2^28 += bf16", 10 * elements, limits,
           [&] { ops::accumulate(grad, weight); });
}

void logprobs(const Limits& limits, int64_t tokens, int64_t hidden) {
  const int64_t vocab = 50272;
  const at::Tensor x = normal({tokens, hidden}, at::kBFloat16);
  const at::Tensor table = normal({vocab, hidden}, at::kBFloat16) * 0.02;
  const at::Tensor d_table = at::zeros_like(table);
  const at::Tensor targets = at::randint(vocab, {tokens}, x.options().dtype(at::kLong));
  const ops::TokenLogprobs saved = ops::token_logprobs(x, view(table), targets, 0, false);
  const double flops = 2.0 * static_cast<double>(tokens * hidden * vocab);
  const std::string shape = str(tokens, " x ", hidden, " -> ", vocab, " bf16");
  by_flops("logprobs", shape, flops, limits,
           [&] { ops::token_logprobs(x, view(table), targets, 0, false); });
  by_flops("logprobs with entropy", shape, flops, limits,
           [&] { ops::token_logprobs(x, view(table), targets, 0, true); });
  by_flops("logprobs backward", shape, 3 * flops, limits, [&] {
    ops::token_logprobs_backward(saved.logp, x, view(table), targets, saved, 0, d_table);
  });
}

void run() {
  const Limits limits = measure_limits();
  std::printf("limits: copy %.0f GB/s, bf16 product %.0f TFLOP/s\n", limits.bytes_per_second / 1e9,
              limits.flops_per_second / 1e12);
  layer_norm(limits, 1024);
  layer_norm(limits, 2048);
  linear_backward(limits);
  embedding_backward(limits);
  attention(limits, 8, 2048, 32, 64, false);
  attention(limits, 16, 512, 16, 64, false);
  attention(limits, 8, 1024, 16, 128, true);
  decode(limits, 16, 512, {32, 32, 64, false}, false);
  decode(limits, 64, 512, {32, 32, 64, false}, false);
  decode(limits, 16, 512, {16, 16, 64, false}, false);
  decode(limits, 16, 512, {16, 16, 64, true}, true);
  decode(limits, 16, 2048, {32, 8, 128, false}, false);
  decode(limits, 1, 2048, {32, 32, 64, false}, false);
  for (const int64_t batch : {16, 64}) {
    sampling(limits, batch, "greedy", {.temperature = 0});
    sampling(limits, batch, "temperature", {});
    sampling(limits, batch, "top-k 50", {.top_k = 50});
    sampling(limits, batch, "top-p 0.9", {.top_p = 0.9});
  }
  adam(limits);
  logprobs(limits, 16384, 2048);
  logprobs(limits, 8192, 512);
}

}  // namespace
}  // namespace reknit

int main() {
  if (!at::globalContext().hasCUDA()) {
    std::printf("this bench needs a CUDA device and a build with REKNIT_CUDA=ON\n");
    return 2;
  }
  const reknit::RankScope rank(0, 1, c10::Device(c10::kCUDA, 0));
  reknit::run();
  return 0;
}
