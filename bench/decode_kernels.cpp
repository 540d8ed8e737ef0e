// How near do the kernels of a decode step come to the memory's rate?
//
// Each is timed in a CUDA graph of many, as in a recorded step. Products of few rows: checks
// each result, then one line a shape: torch's product, the time of every cut (tile x splits)
// and of the one that is chosen. Then attention over the cache, norms and draws.
// Usage: bench_decode_kernels [ROWS 16]
#include "reknit/base/param_view.h"
#include "reknit/base/rank.h"
#include "reknit/engine/cuda_graph.h"
#include "reknit/kernels/attention.h"
#include "reknit/kernels/lm_head.h"
#include "reknit/kernels/ops.h"
#include "reknit/kernels/skinny_linear.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <c10/cuda/CUDAStream.h>

namespace reknit {
namespace {

using kernels::SkinnyCut;
using kernels::SkinnyLinear;

constexpr int64_t kWeightBytes = int64_t{1} << 29;  // of all copies: far more than the cache

/// Microseconds of a call of `body`, which takes its number, in a graph of all copies.
double time_of(int64_t copies, const std::function<void(int64_t)>& body) {
  const auto all = [&] {
    for (int64_t i = 0; i < copies; ++i) {
      body(i);
    }
  };
  all();
  const CudaGraph graph(all);
  graph.replay();
  this_rank().compute.synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) {
    graph.replay();
  }
  this_rank().compute.synchronize();
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - start;
  return elapsed.count() / 5 / static_cast<double>(copies);
}

void measure(int64_t rows, int64_t in, int64_t out) {
  const auto options = at::TensorOptions(at::kBFloat16).device(this_rank().device);
  const int64_t copies = std::clamp<int64_t>(kWeightBytes / (in * out * 2), 2, 64);
  const at::Tensor weights = at::randn({copies, out, in}, options);
  const at::Tensor x = at::randn({rows, in}, options);
  const at::Tensor y = at::empty({rows, out}, options);
  const auto call = [&](SkinnyCut cut) {
    return [&, cut](int64_t i) {
      SkinnyLinear args;
      args.rows = rows;
      args.in = in;
      args.out = out;
      args.x = x.const_data_ptr();
      args.weight = weights[i].const_data_ptr();
      args.y = y.mutable_data_ptr();
      args.cut = cut;
      kernels::skinny_linear(kernels::Element::kBf16, args,
                             c10::cuda::getCurrentCUDAStream().stream());
    };
  };
  const double torch = time_of(copies, [&](int64_t i) { at::mm(x, weights[i].t()); });
  const auto rate = [&](double us) { return static_cast<double>(in * out * 2) / us / 1e6; };
  std::printf("%3ld x %5ld -> %6ld: torch %.1f us %.2f TB/s", rows, in, out, torch, rate(torch));
  if (rows > kernels::kMaxSkinnyRows) {
    std::printf("\n");
    return;
  }
  const at::Tensor expected = at::mm(x.to(at::kFloat), weights[0].to(at::kFloat).t());
  for (const int64_t tile : {16, 32, 64}) {
    for (const int64_t splits : {1, 2, 4, 8}) {
      const int64_t blocks = (out + tile - 1) / tile * splits;
      if (in % (64 * splits) != 0 || in / splits < 256 || blocks < 96 ||
          (splits > 1 && blocks > 280)) {
        continue;
      }
      const auto product = call({tile, splits});
      product(0);
      const double error =
          (y.to(at::kFloat) - expected).norm().item<double>() / expected.norm().item<double>();
      const double us = time_of(copies, product);
      std::printf(" %ldx%ld %.1f%s", tile, splits, us, error < 0.01 ? "" : " WRONG");
    }
  }
  const double chosen = time_of(copies, call({}));
  std::printf(" | chosen %.1f us %.2f TB/s\n", chosen, rate(chosen));
  std::fflush(stdout);
}

struct AlwaysReadable : ReadGuard {
  void require_readable(const std::string&, uint64_t, uint64_t) const override {}
};

ParamView view(const at::Tensor& value) {
  static const std::string name = "bench";
  static const auto guard = std::make_shared<AlwaysReadable>();
  return ParamView(&name, value, guard, 0, 0);
}

void measure_attention(int64_t rows, int64_t length, int64_t heads, bool alibi) {
  constexpr int64_t kLayers = 24;
  const auto options = at::TensorOptions(at::kBFloat16).device(this_rank().device);
  const ops::HeadLayout layout{heads, heads, 64, alibi};
  std::vector<ops::KvLayer> layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    layers.push_back(
        {at::randn({rows, 512, heads, 64}, options), at::randn({rows, 512, heads, 64}, options)});
  }
  const at::Tensor qkv = at::randn({rows, 3 * heads * 64}, options);
  const at::Tensor slots = at::arange(rows, options.dtype(at::kLong));
  const at::Tensor lengths = at::full({rows}, length - 1, options.dtype(at::kLong));
  const at::Tensor slopes = alibi ? ops::alibi_slopes(heads).to(this_rank().device) : at::Tensor();
  const double us = time_of(kLayers, [&](int64_t i) {
    ops::attention_decode(qkv, layout, layers[i], slots, lengths, 0.125, slopes);
  });
  const double bytes = 4.0 * static_cast<double>(rows * length * heads * 64);
  std::printf("attention, %ld rows of %ld of 512, %ld heads%s: %.1f us %.2f TB/s\n", rows, length,
              heads, alibi ? ", ALiBi" : "", us, bytes / us / 1e6);
}

void measure_small(int64_t rows) {
  const auto options = at::TensorOptions(at::kBFloat16).device(this_rank().device);
  for (const int64_t width : {1024, 2048}) {
    const at::Tensor x = at::randn({rows, width}, options);
    const at::Tensor weight = at::randn({width}, options);
    std::printf("norm %ld x %ld: %.1f us\n", rows, width, time_of(48, [&](int64_t) {
                  ops::layer_norm(x, view(weight), view(weight), 1e-5);
                }));
  }
  for (const int64_t vocab : {50272, 250880}) {
    const at::Tensor logits = at::randn({rows, vocab}, options.dtype(at::kFloat));
    const at::Tensor zeros = at::zeros({rows}, options.dtype(at::kLong));
    for (const double temperature : {0.0, 1.0}) {
      std::printf("draw %ld of %ld, temperature %.0f: %.1f us\n", rows, vocab, temperature,
                  time_of(16, [&](int64_t) {
                    ops::sample(logits, {.temperature = temperature}, zeros, zeros, zeros, 2);
                  }));
    }
  }
}

}  // namespace
}  // namespace reknit

int main(int argc, char** argv) {
  using namespace reknit;
  try {
    run_ranks({c10::Device(c10::kCUDA, 0)}, [&](int) {
      const int64_t rows = argc > 1 ? std::stol(argv[1]) : 16;
      for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{2048, 6144},
                                                                            {2048, 2048},
                                                                            {2048, 8192},
                                                                            {8192, 2048},
                                                                            {2048, 50272},
                                                                            {1024, 3072},
                                                                            {1024, 1024},
                                                                            {1024, 4096},
                                                                            {4096, 1024},
                                                                            {512, 50272},
                                                                            {1024, 250880},
                                                                            {1024, 512}}) {
        measure(rows, in, out);
      }
      for (const int64_t length : {256, 384, 512}) {
        measure_attention(rows, length, 16, false);
        measure_attention(rows, length, 16, true);
        measure_attention(rows, length, 32, false);
      }
      measure_small(rows);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
