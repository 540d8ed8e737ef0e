// Generation from shards against transformers, for every rank count, stage and mode.
#include "reknit/engine/hybrid.h"

#include "tests/support/rank_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reknit {
namespace {

using namespace testing_support;
using testing::HasSubstr;

constexpr int kNewTokens = 12;

const char* const kModels[] = {"opt-125m",      "opt-350m",      "opt-untied",
                               "bloom-4-heads", "bloom-6-heads", "gpt2"};

// Rank r's part of n requests: contiguous, uneven, possibly empty.
std::pair<size_t, size_t> part(size_t n, int rank, int world) {
  return {n * rank / world, n * (rank + 1) / world};
}

std::vector<GenerationRequest> requests_of(const std::vector<std::vector<int64_t>>& prompts,
                                           int rank, int world) {
  std::vector<GenerationRequest> requests;
  const auto [begin, end] = part(prompts.size(), rank, world);
  for (size_t i = begin; i < end; ++i) {
    requests.push_back({prompts[i], i});
  }
  return requests;
}

// Answers of all prompts, gathered from the ranks that own them.
std::vector<Generation> generate_on(int world, const std::filesystem::path& folder,
                                    const std::vector<std::vector<int64_t>>& prompts,
                                    RankModelSettings model_settings, GatherMode mode,
                                    const SamplingSettings& sampling, int64_t batch = 2) {
  std::vector<Generation> all(prompts.size());
  on_ranks(world, [&](std::shared_ptr<Communicator> comm) {
    RankModel rank(folder, comm, model_settings);
    Hybrid hybrid(rank.model->decoder, rank.model->store, {.mode = mode});
    GenerateLease lease = hybrid.enter_generation();
    const int r = comm->rank();
    auto answers = lease.generate(requests_of(prompts, r, world), batch, sampling);
    const size_t begin = part(prompts.size(), r, world).first;
    for (size_t i = 0; i < answers.size(); ++i) {
      all[begin + i] = std::move(answers[i]);
    }
  });
  return all;
}

TEST(Generate, GreedyTokensEqualTransformersForEveryModelRankCountStageAndMode) {
  const auto golden_root = golden_folder("models");
  for (const std::string name : kModels) {
    const auto folder = golden_root / name;
    const auto golden = read_tensors(folder / "golden.safetensors");
    const auto prompts = golden_prompts(golden);
    const at::Tensor expected = golden.at("generated").to(at::kLong);
    for (const int world : {1, 2, 3, 4, 5, 8}) {
      for (const int stage : {0, 3}) {
        for (const GatherMode mode : {GatherMode::kPinned, GatherMode::kLayerwise}) {
          const auto answers = generate_on(world, folder, prompts, {.zero_stage = stage}, mode,
                                           {.max_new_tokens = kNewTokens});
          for (size_t i = 0; i < prompts.size(); ++i) {
            ASSERT_EQ(answers[i].tokens.size(), size_t{kNewTokens});
            EXPECT_TRUE(at::equal(at::tensor(answers[i].tokens, at::kLong), expected[i]))
                << name << " world " << world << " stage " << stage << " prompt " << i;
          }
        }
      }
    }
  }
}

TEST(Generate, SampledAnswersDependOnNeitherRanksNorBatchNorMode) {
  const auto folder = golden_folder("models") / "bloom-4-heads";
  const auto prompts = golden_prompts(read_tensors(folder / "golden.safetensors"));
  const SamplingSettings sampling{
      .max_new_tokens = 9, .temperature = 1.0, .top_p = 0.95, .seed = 5};
  const auto expected = generate_on(1, folder, prompts, {}, GatherMode::kPinned, sampling, 64);
  EXPECT_NE(expected[0].tokens, expected[2].tokens);
  for (const int world : {2, 3, 5}) {
    for (const int64_t batch : {1, 3}) {
      const auto answers =
          generate_on(world, folder, prompts, {}, GatherMode::kLayerwise, sampling, batch);
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(answers[i].tokens, expected[i].tokens) << "world " << world << " batch " << batch;
      }
    }
  }
}

TEST(Generate, LogprobsOfAnswersEqualAScoringPass) {
  const auto folder = golden_folder("models") / "opt-350m";
  const auto prompts = golden_prompts(read_tensors(folder / "golden.safetensors"));
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    RankModel rank(folder, comm, {});
    Hybrid hybrid(rank.model->decoder, rank.model->store, {});
    std::vector<Generation> answers;
    const auto requests = requests_of(prompts, 0, 1);
    {
      GenerateLease lease = hybrid.enter_generation();
      answers = lease.generate(requests, 8, {.max_new_tokens = 6, .temperature = 1.0});
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int64_t> tokens = requests[i].prompt;
      tokens.insert(tokens.end(), answers[i].tokens.begin(), answers[i].tokens.end());
      std::vector<int64_t> targets(tokens.begin() + 1, tokens.end());
      targets.push_back(-1);
      const auto batch = TokenBatch::of(tokens, {static_cast<int64_t>(tokens.size())},
                                        rank.model->decoder.spec(), test_device());
      const auto scored = rank.model->decoder.logprobs(
          rank.model->store, batch, at::tensor(targets, at::kLong).to(test_device()),
          Phase::kForward, false);
      rank.model->store.finish_pass();
      for (size_t t = 0; t < answers[i].tokens.size(); ++t) {
        const auto place = static_cast<int64_t>(requests[i].prompt.size() - 1 + t);
        EXPECT_NEAR(answers[i].logprobs[t], scored.logp[place].item<float>(), 2e-4);
      }
    }
  });
}

// The end token comes at steps 2 and 5 on the two ranks: both run five forwards.
TEST(Generate, RanksOfAGatherGroupRunTheSameForwardsUntilTheLastLocalEnd) {
  const auto folder = golden_folder("models") / "opt-125m";
  const auto golden = read_tensors(folder / "golden.safetensors");
  const auto prompts = golden_prompts(golden);
  // An end token that prompt 0 draws early and prompt 2 later, found in the golden answers.
  const at::Tensor generated = golden.at("generated").to(at::kLong);
  const auto first_place = [&](int64_t row, int64_t token) {
    const at::Tensor hits = (generated[row] == token).nonzero();
    return hits.numel() == 0 ? int64_t{kNewTokens} : hits[0].item<int64_t>() + 1;
  };
  int64_t eos = -1;
  size_t early = 0;
  size_t late = 0;
  for (size_t a = 0; a < prompts.size() && eos < 0; ++a) {
    for (size_t b = 0; b < prompts.size() && eos < 0; ++b) {
      for (int64_t t = 0; t < kNewTokens; ++t) {
        const int64_t token = generated[b][t].item<int64_t>();
        if (first_place(a, token) < first_place(b, token) && first_place(b, token) < 8) {
          eos = token;
          early = a;
          late = b;
          break;
        }
      }
    }
  }
  if (eos < 0) {  // no common token: only one of the two ends early
    eos = generated[0][1].item<int64_t>();
    early = 0;
    late = 2;
  }
  const int64_t expected = std::min<int64_t>(8, first_place(late, eos));
  std::vector<int64_t> forwards(2);
  std::vector<size_t> lengths(2);
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    RankModel rank(folder, comm, {});
    Hybrid hybrid(rank.model->decoder, rank.model->store, {.mode = GatherMode::kLayerwise});
    GenerateLease lease = hybrid.enter_generation();
    const size_t mine = comm->rank() == 0 ? early : late;
    const auto answers =
        lease.generate({{prompts[mine], mine}}, 1, {.max_new_tokens = 8, .eos = eos});
    forwards[comm->rank()] = last_forward_count();
    lengths[comm->rank()] = answers[0].tokens.size();
  });
  EXPECT_EQ(forwards[0], expected);
  EXPECT_EQ(forwards[1], expected);
  EXPECT_EQ(lengths[0], static_cast<size_t>(first_place(early, eos)));
  EXPECT_EQ(lengths[1], static_cast<size_t>(expected));
}

TEST(Generate, OneGatherGroupGeneratesWithoutTheOther) {
  const auto folder = golden_folder("models") / "opt-125m";
  const auto prompts = golden_prompts(read_tensors(folder / "golden.safetensors"));
  on_ranks(4, [&](std::shared_ptr<Communicator> comm) {
    RankModel rank(folder, comm, {.shard_size = 2});
    if (comm->rank() < 2) {
      Hybrid hybrid(rank.model->decoder, rank.model->store, {.mode = GatherMode::kLayerwise});
      GenerateLease lease = hybrid.enter_generation();
      EXPECT_EQ(lease.generate(requests_of(prompts, comm->rank(), 2), 2, {.max_new_tokens = 4})[0]
                    .tokens.size(),
                4u);
    }
  });
}

TEST(Generate, GrowingAndShrinkingBatchesAndLengthsGiveTheSameAnswers) {
  const auto folder = golden_folder("models") / "opt-350m";
  const auto golden = read_tensors(folder / "golden.safetensors");
  const auto prompts = golden_prompts(golden);
  const at::Tensor expected = golden.at("generated").to(at::kLong);
  on_ranks(2, [&](std::shared_ptr<Communicator> comm) {
    RankModel rank(folder, comm, {});
    Hybrid hybrid(rank.model->decoder, rank.model->store, {});
    for (const auto& [count, length] :
         {std::pair<size_t, int64_t>{1, 2}, {4, 12}, {2, 3}, {4, 5}, {1, 12}}) {
      std::vector<GenerationRequest> requests;
      for (size_t i = 0; i < count; ++i) {
        requests.push_back({prompts[i], i});
      }
      GenerateLease lease = hybrid.enter_generation();
      const auto answers = lease.generate(requests, 64, {.max_new_tokens = length});
      for (size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(
            at::equal(at::tensor(answers[i].tokens, at::kLong), expected[i].narrow(0, 0, length)));
      }
    }
  });
}

TEST(Generate, MinimumLengthHoldsTheEndTokenBack) {
  const auto folder = golden_folder("models") / "opt-125m";
  const auto golden = read_tensors(folder / "golden.safetensors");
  const auto prompts = golden_prompts(golden);
  const int64_t eos = golden.at("generated")[0][0].item<int64_t>();
  const auto free = generate_on(1, folder, {prompts[0]}, {}, GatherMode::kPinned,
                                {.max_new_tokens = 6, .eos = eos});
  EXPECT_EQ(free[0].tokens.size(), 1u);
  EXPECT_TRUE(free[0].ended);
  const auto held = generate_on(1, folder, {prompts[0]}, {}, GatherMode::kPinned,
                                {.max_new_tokens = 6, .min_new_tokens = 4, .eos = eos});
  EXPECT_GE(held[0].tokens.size(), 4u);
}

TEST(Generate, LengthsBeyondTheModelsPositionsAreRefusedWithBothNumbers) {
  const auto folder = golden_folder("models") / "opt-125m";
  try {
    generate_on(2, folder, {{3, 4, 5}, {6}}, {}, GatherMode::kPinned, {.max_new_tokens = 1000});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("1000"));
    EXPECT_THAT(error.what(), HasSubstr("32"));
  }
}

TEST(Generate, ShardsAreBitIdenticalAfterwardsAndUpdatesReachTheNextPhase) {
  const auto folder = golden_folder("models") / "bloom-4-heads";
  const auto prompts = golden_prompts(read_tensors(folder / "golden.safetensors"));
  on_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    RankModel rank(folder, comm, {});
    Store& store = rank.model->store;
    Hybrid hybrid(rank.model->decoder, store, {});
    const auto requests = requests_of(prompts, comm->rank(), 3);
    const auto run = [&] {
      GenerateLease lease = hybrid.enter_generation();
      return lease.generate(requests, 8, {.max_new_tokens = 8});
    };
    std::vector<at::Tensor> before;
    for (const OptimizerShard& shard : store.shards()) {
      before.push_back(shard.weight.clone());
    }
    const auto first = run();
    const auto shards = store.shards();
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::equal(before[i], shards[i].weight));
    }
    Edit edit = store.edit(0, 0, 0);  // another embedding table
    edit.value().copy_(edit.value().roll(1, 0));
    std::move(edit).commit();
    const auto second = run();
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_NE(first[i].tokens, second[i].tokens);
    }
  });
}

}  // namespace
}  // namespace reknit
