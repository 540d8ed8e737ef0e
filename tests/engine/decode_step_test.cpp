// Recorded decode steps against the same kernels queued one by one. Only on a GPU.
#include "reknit/engine/decode_step.h"

#include "reknit/engine/hybrid.h"
#include "reknit/engine/model.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using Answers = std::vector<Generation>;

const char* const kOpt = R"({"model_type": "opt", "vocab_size": 512, "hidden_size": 128,
  "word_embed_proj_dim": 64, "do_layer_norm_before": false, "num_hidden_layers": 3,
  "num_attention_heads": 4, "ffn_dim": 256, "max_position_embeddings": 1024})";
const char* const kBloom = R"({"model_type": "bloom", "vocab_size": 512, "hidden_size": 128,
  "n_layer": 3, "n_head": 4})";

struct Round {
  size_t prompts;
  SamplingSettings sampling;
};

/// The answers of a fresh model to each round, with and without recorded steps.
class DecodeStepTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::globalContext().hasCUDA() || !CudaGraph::available(c10::Device(c10::kCUDA, 0)) ||
        kPoisonReleased) {
      GTEST_SKIP() << "needs a GPU";
    }
  }

  static GenerationRequest request(size_t i) {
    GenerationRequest request{{}, i};
    for (size_t t = 0; t < 3 + 5 * (i % 7); ++t) {
      request.prompt.push_back(static_cast<int64_t>(5 + (i * 131 + t * 17) % 500));
    }
    return request;
  }

  /// `each` (may be empty) is called before every round but the first.
  static std::vector<Answers> run(const char* config, at::ScalarType dtype, bool record,
                                  const std::vector<Round>& rounds, int world = 1,
                                  const std::function<void(Model&)>& each = {}) {
    std::vector<std::vector<Answers>> all(world);
    auto comms = make_thread_group(world, {.name = "world", .timeout = std::chrono::seconds(20)});
    const c10::Device device(c10::kCUDA, 0);
    run_ranks(
        std::vector<c10::Device>(world, device),
        [&](int rank) {
          const std::shared_ptr<Communicator> comm = std::move(comms[rank]);
          SlotPool pool([&](int64_t bytes) {
            return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
          });
          const auto model = make_model(
              ModelSpec::from_hf(nlohmann::json::parse(config)),
              {.name = "actor", .dtype = dtype, .placement = {3, world}, .allocator = {}},
              StoreComms::over(comm, world), pool);
          pool.seal();
          init_model(*model, 3);
          Hybrid hybrid(model->decoder, model->store, {.record_steps = record});
          for (size_t p = 0; p < rounds.size(); ++p) {
            if (p > 0 && each) {
              each(*model);
            }
            std::vector<GenerationRequest> requests;
            for (size_t i = 0; i < rounds[p].prompts; ++i) {
              requests.push_back(request(i));
            }
            GenerateLease lease = hybrid.enter_generation();
            all[rank].push_back(lease.generate(requests, 64, rounds[p].sampling));
            if (rank == 0) {
              forwards_ = last_forward_count();
            }
          }
        },
        [&](const std::string& reason) { std::fprintf(stderr, "%s\n", reason.c_str()); });
    for (const auto& other : all) {
      expect_equal(all[0], other);
    }
    return all[0];
  }

  inline static int64_t forwards_ = 0;  ///< of rank 0 in the last round

  static void expect_equal(const std::vector<Answers>& a, const std::vector<Answers>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t p = 0; p < a.size(); ++p) {
      ASSERT_EQ(a[p].size(), b[p].size());
      for (size_t i = 0; i < a[p].size(); ++i) {
        EXPECT_EQ(a[p][i].tokens, b[p][i].tokens) << "phase " << p << " prompt " << i;
        EXPECT_EQ(a[p][i].ended, b[p][i].ended) << "phase " << p << " prompt " << i;
        EXPECT_EQ(a[p][i].logprobs, b[p][i].logprobs) << "phase " << p << " prompt " << i;
      }
    }
  }
};

TEST_F(DecodeStepTest, GrowingAndShrinkingBatchesGiveTheTokensOfKernelsOneByOne) {
  const SamplingSettings greedy{.max_new_tokens = 40};
  const SamplingSettings sampled{.max_new_tokens = 21, .temperature = 1.0, .seed = 5};
  const SamplingSettings filtered{
      .max_new_tokens = 12, .temperature = 0.7, .top_k = 20, .top_p = 0.9, .vocab = 500};
  const std::vector<Round> rounds{{3, greedy},
                                  {16, sampled},
                                  {16, sampled},
                                  {40, greedy},
                                  {1, sampled},
                                  {5, filtered},
                                  {16, sampled},
                                  {3, greedy},
                                  {2, {.max_new_tokens = 1}},
                                  {4, {.max_new_tokens = 300}}};
  for (const char* config : {kOpt, kBloom}) {
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
      SCOPED_TRACE(testing::Message() << config << " " << dtype);
      const auto recorded = run(config, dtype, true, rounds);
      expect_equal(recorded, run(config, dtype, false, rounds));
      EXPECT_EQ(recorded[3][39].tokens.size(), 40u);
    }
  }
}

// In 16 bits a row's bits do not depend on how many others there are, so that rows may
// drop out of the one and stay in the other.
TEST_F(DecodeStepTest, AnswersThatEndAtDifferentStepsAreCutThere) {
  SamplingSettings sampling{.max_new_tokens = 60, .temperature = 1.5};
  const auto free = run(kOpt, at::kHalf, true, {{12, sampling}});
  sampling.eos = free[0][0].tokens[4];
  const auto ended = run(kOpt, at::kHalf, true, {{12, sampling}, {12, sampling}});
  EXPECT_LE(ended[0][0].tokens.size(), 5u);
  EXPECT_TRUE(ended[0][0].ended);
  expect_equal(ended, run(kOpt, at::kHalf, false, {{12, sampling}, {12, sampling}}));
}

TEST_F(DecodeStepTest, ABatchWhoseAnswersHaveAllEndedStopsEarly) {
  SamplingSettings sampling{.max_new_tokens = 500, .temperature = 1.0};
  const auto free = run(kBloom, at::kHalf, true, {{1, sampling}});
  EXPECT_EQ(forwards_, 500);
  sampling.eos = free[0][0].tokens[2];
  run(kBloom, at::kHalf, true, {{1, sampling}});
  EXPECT_LE(forwards_, 3 + 2 * 8);  // up to two chunks too many
}

TEST_F(DecodeStepTest, RanksThatShareAGpuRecordAtTheSameTime) {
  const SamplingSettings sampling{.max_new_tokens = 30, .temperature = 1.0};
  const auto one = run(kBloom, at::kBFloat16, true, {{6, sampling}, {9, sampling}});
  expect_equal(one, run(kBloom, at::kBFloat16, true, {{6, sampling}, {9, sampling}}, 4));
}

TEST_F(DecodeStepTest, AReplayReadsTheWeightsOfItsPhase) {
  const SamplingSettings sampling{.max_new_tokens = 20};
  const auto edit = [](Model& model) {
    Edit edit = model.store.edit(0, 0, 0);
    edit.value().copy_(edit.value().roll(1, 0));
    std::move(edit).commit();
  };
  const std::vector<Round> rounds{{8, sampling}, {8, sampling}, {8, sampling}};
  const auto recorded = run(kOpt, at::kHalf, true, rounds, 1, edit);
  EXPECT_NE(recorded[0][0].tokens, recorded[1][0].tokens);
  expect_equal(recorded, run(kOpt, at::kHalf, false, rounds, 1, edit));
}

/// While it lives, host memory of one size lies in two places, the lower one that is free first:
/// what is given back is what the next tensor of that size gets.
class SamePlaces : public c10::Allocator {
 public:
  explicit SamePlaces(size_t bytes)
      : bytes_(bytes), memory_(2 * bytes), before_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this);
  }
  ~SamePlaces() override { c10::SetCPUAllocator(before_); }

  c10::DataPtr allocate(size_t bytes) override {
    const size_t place = taken_[0] ? 1 : 0;
    if (bytes != bytes_ || taken_[place]) {
      return before_->allocate(bytes);
    }
    taken_[place] = true;
    return {memory_.data() + place * bytes_, &taken_[place],
            [](void* taken) { *static_cast<bool*>(taken) = false; }, c10::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  const size_t bytes_;
  std::vector<char> memory_;
  bool taken_[2] = {false, false};
  c10::Allocator* const before_;
};

TEST(DecodeSteps, AreMadeAnewWhereTheSameMemoryIsAnotherCache) {
  const c10::Device device = this_rank().device;
  const std::shared_ptr<Communicator> comm = std::move(make_thread_group(1)[0]);
  SlotPool pool([&](int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
  });
  nlohmann::json config = nlohmann::json::parse(kOpt);
  config["num_hidden_layers"] = 1;
  const auto model = make_model(ModelSpec::from_hf(config),
                                {.name = "actor", .placement = {0, 1}, .allocator = {}},
                                StoreComms::over(comm, 1), pool);
  pool.seal();
  const SamePlaces places(32 * 2560 * 128 * sizeof(float));
  KvCache cache(model->decoder.spec(), at::kFloat, device);
  cache.reserve(32, 2560);
  const void* keys = cache.layer(0).k.const_data_ptr();
  const void* values = cache.layer(0).v.const_data_ptr();
  const StepKind kind{.rows = 2, .most = 4, .used = 1280};
  DecodeSteps steps;
  steps.step(model->decoder, model->store, cache, kind).tokens().fill_(7);
  EXPECT_EQ(steps.step(model->decoder, model->store, cache, kind).tokens().max().item<int64_t>(), 7)
      << "the step of a batch of the same kind is taken again";
  cache.release();
  cache.reserve(64, 1280);
  ASSERT_EQ(cache.layer(0).k.const_data_ptr(), keys);
  ASSERT_EQ(cache.layer(0).v.const_data_ptr(), values);
  EXPECT_EQ(steps.step(model->decoder, model->store, cache, kind).tokens().max().item<int64_t>(),
            0);
}

}  // namespace
}  // namespace reknit
