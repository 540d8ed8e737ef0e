// One Decoder under everything that may vary: batches, checkpointing, frozen parts, dtypes.
#include "reknit/models/decoder.h"

#include "reknit/models/saved.h"
#include "tests/models/golden_case.h"
#include "tests/support/plain_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace reknit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Next token of each, -1 at the end of a sequence.
at::Tensor next_tokens(const std::vector<int64_t>& tokens, const std::vector<int64_t>& lengths) {
  std::vector<int64_t> targets(tokens.begin() + (tokens.empty() ? 0 : 1), tokens.end());
  targets.resize(tokens.size(), -1);
  int64_t end = 0;
  for (const int64_t length : lengths) {
    end += length;
    if (length > 0) {
      targets[end - 1] = -1;
    }
  }
  return at::tensor(targets, at::kLong);
}

/// One forward and backward of the sum of weighted log-probabilities.
struct Pass {
  ops::TokenLogprobs out;
  PerParam gradients;
};

PerParam gradients_of(const PlainSource& params) {
  PerParam result;
  for (size_t g = 0; g < params.groups().size(); ++g) {
    std::vector<at::Tensor>& group = result.emplace_back();
    for (size_t p = 0; p < params.groups()[g].params.size(); ++p) {
      group.push_back(params.gradient(static_cast<GroupId>(g), static_cast<int>(p)));
    }
  }
  return result;
}

Pass run(const GoldenCase& c, PlainSource& params,
         Checkpointing checkpointing = Checkpointing::kNone) {
  const c10::Device device = params.value(0, 0).device();
  const Decoder decoder(c.spec);
  std::shared_ptr<Saved> saved;
  Pass pass;
  pass.out = decoder.logprobs(params, c.batch(device), c.golden.at("targets").to(device),
                              Phase::kForward, false, &saved, checkpointing);
  decoder.logprobs_backward(params, std::move(saved), c.golden.at("weights").to(device));
  pass.gradients = gradients_of(params);
  return pass;
}

class DecoderOn : public testing::TestWithParam<c10::Device> {};

TEST_P(DecoderOn, RecomputingBlocksChangesNoBit) {
  for (const std::string& name : kGoldenCases) {
    SCOPED_TRACE(name);
    const GoldenCase c(name);
    PlainSource kept(Decoder(c.spec).groups(), at::kFloat, GetParam());
    PlainSource recomputed(Decoder(c.spec).groups(), at::kFloat, GetParam());
    c.fill(kept);
    c.fill(recomputed);
    const Pass a = run(c, kept);
    const Pass b =
        run(c, recomputed, name == "bloom-4-heads" ? Checkpointing{2} : Checkpointing::kFull);
    EXPECT_TRUE(at::equal(a.out.logp, b.out.logp));
    for (size_t g = 0; g < a.gradients.size(); ++g) {
      for (size_t p = 0; p < a.gradients[g].size(); ++p) {
        EXPECT_TRUE(at::equal(a.gradients[g][p], b.gradients[g][p]))
            << kept.groups()[g].params[p].name;
      }
    }
    EXPECT_EQ(kept.opened, recomputed.opened);
  }
}

TEST_P(DecoderOn, LearningGivesTheBitsOfForwardAndBackward) {
  for (const std::string& name : kGoldenCases) {
    for (const bool tied : {true, false}) {
      SCOPED_TRACE(name + (tied ? "" : ", untied"));
      GoldenCase c(name);
      c.spec.tied_head = tied;
      const Decoder decoder(c.spec);
      PlainSource apart(decoder.groups(), at::kFloat, GetParam());
      PlainSource together(decoder.groups(), at::kFloat, GetParam());
      for (PlainSource* params : {&apart, &together}) {
        at::manual_seed(3);
        for (size_t g = 0; g < params->groups().size(); ++g) {
          for (size_t p = 0; p < params->groups()[g].params.size(); ++p) {
            params->value(static_cast<GroupId>(g), static_cast<int>(p))
                .copy_(at::randn(params->groups()[g].params[p].shape) * 0.1);
          }
        }
      }
      const Pass pass = run(c, apart);
      std::shared_ptr<Saved> saved;
      const auto out = decoder.learn_logprobs(
          together, c.batch(GetParam()), c.golden.at("targets").to(GetParam()),
          c.golden.at("weights").to(GetParam()), &saved, Checkpointing{2});
      decoder.learn_backward(together, std::move(saved));
      EXPECT_TRUE(at::equal(out.logp, pass.out.logp));
      const PerParam gradients = gradients_of(together);
      for (size_t g = 0; g < gradients.size(); ++g) {
        for (size_t p = 0; p < gradients[g].size(); ++p) {
          EXPECT_TRUE(at::equal(gradients[g][p], pass.gradients[g][p]))
              << apart.groups()[g].params[p].name;
        }
      }
      EXPECT_EQ(together.reduced, apart.reduced);
    }
  }
}

TEST_P(DecoderOn, ASequenceIsTheSameAloneAndInARaggedBatchWithEmptyOnes) {
  for (const std::string& name : kGoldenCases) {
    SCOPED_TRACE(name);
    const GoldenCase c(name);
    const Decoder decoder(c.spec);
    PlainSource params(decoder.groups(), at::kFloat, GetParam());
    c.fill(params);
    const std::vector<int64_t> lengths{0, c.lengths[0], 0, c.lengths[1], c.lengths[2], c.lengths[3],
                                       0};
    const auto logprobs = [&](const std::vector<int64_t>& tokens,
                              const std::vector<int64_t>& sizes) {
      const at::Tensor targets = next_tokens(tokens, sizes).to(GetParam());
      return decoder
          .logprobs(params, TokenBatch::of(tokens, sizes, c.spec, GetParam()), targets,
                    Phase::kForward, false)
          .logp;
    };
    const at::Tensor together = logprobs(c.tokens, lengths);
    EXPECT_LE(max_difference(together, c.golden.at("logp")), fp32_tolerance(GetParam()));
    int64_t begin = 0;
    for (const int64_t length : c.lengths) {
      const std::vector<int64_t> tokens(c.tokens.begin() + begin,
                                        c.tokens.begin() + begin + length);
      EXPECT_LE(max_difference(logprobs(tokens, {length}), together.narrow(0, begin, length)),
                fp32_tolerance(GetParam()));
      begin += length;
    }
  }
}

TEST_P(DecoderOn, ABatchWithoutTokensOpensTheSameGroupsAndHasZeroGradients) {
  const GoldenCase c("opt-350m");
  const Decoder decoder(c.spec);
  PlainSource params(decoder.groups(), at::kFloat, GetParam());
  c.fill(params);
  std::shared_ptr<Saved> saved;
  const at::Tensor none = at::empty({0}, at::dtype(at::kLong).device(GetParam()));
  const auto out = decoder.logprobs(params, TokenBatch::of({}, {0, 0}, c.spec, GetParam()), none,
                                    Phase::kForward, false, &saved);
  EXPECT_EQ(out.logp.numel(), 0);
  decoder.logprobs_backward(params, std::move(saved), none.to(at::kFloat));
  EXPECT_THAT(params.reduced, ElementsAre(3, 2, 1, 0));
  for (const std::vector<at::Tensor>& group : gradients_of(params)) {
    for (const at::Tensor& gradient : group) {
      EXPECT_EQ(gradient.abs().sum().item<float>(), 0);
    }
  }
}

TEST_P(DecoderOn, PromptsInTheCacheContinueAsTheWholeSequenceWould) {
  for (const std::string& name : kGoldenCases) {
    SCOPED_TRACE(name);
    const GoldenCase c(name);
    const Decoder decoder(c.spec);
    PlainSource params(decoder.groups(), at::kFloat, GetParam());
    c.fill(params);
    // Row 0 grows from 3 tokens to 5, row 1 is empty, row 2 grows from 7 to 9.
    const std::vector<int64_t> a(c.tokens.begin(), c.tokens.begin() + 5);
    const std::vector<int64_t> b(c.tokens.begin() + 6, c.tokens.begin() + 15);
    std::vector<int64_t> prompts(a.begin(), a.begin() + 3);
    prompts.insert(prompts.end(), b.begin(), b.begin() + 7);
    PlainCache cache(c.spec, {2, 0, 1}, 3, 10, at::kFloat, GetParam());
    at::Tensor logits =
        decoder.prefill(params, TokenBatch::of(prompts, {3, 0, 7}, c.spec, GetParam()), cache);
    EXPECT_TRUE(logits.isfinite().all().item<bool>());
    cache.set_lengths({3, 0, 7});
    for (int64_t step = 0; step < 2; ++step) {
      const at::Tensor next = at::tensor({a[3 + step], a[step], b[7 + step]}, at::kLong);
      logits = decoder.decode(params, next.to(GetParam()), cache);
      cache.advance();
    }
    PlainCache fresh(c.spec, {0, 1, 2}, 3, 10, at::kFloat, GetParam());
    std::vector<int64_t> whole = a;
    whole.insert(whole.end(), a.begin(), a.begin() + 2);
    whole.insert(whole.end(), b.begin(), b.end());
    const at::Tensor expected =
        decoder.prefill(params, TokenBatch::of(whole, {5, 2, 9}, c.spec, GetParam()), fresh);
    EXPECT_LE(max_difference(logits, expected), 2 * fp32_tolerance(GetParam()));
  }
}

TEST_P(DecoderOn, FrozenParametersGetNoGradientAndChangeNoOther) {
  for (const std::string& name : kGoldenCases) {
    SCOPED_TRACE(name);
    const GoldenCase c(name);
    std::vector<GroupSpec> groups = Decoder(c.spec).groups();
    PlainSource all(groups, at::kFloat, GetParam());
    c.fill(all);
    const Pass expected = run(c, all);
    for (const int stride : {1, 2, 3}) {  // 1: everything is frozen
      int count = 0;
      std::vector<GroupSpec> mixed = groups;
      for (GroupSpec& group : mixed) {
        for (ParamSpec& param : group.params) {
          param.trainable = count++ % stride != 0;
        }
      }
      PlainSource params(mixed, at::kFloat, GetParam());
      c.fill(params);
      const Pass pass = run(c, params);
      for (size_t g = 0; g < mixed.size(); ++g) {
        for (size_t p = 0; p < mixed[g].params.size(); ++p) {
          const at::Tensor& gradient = pass.gradients[g][p];
          ASSERT_EQ(gradient.defined(), mixed[g].params[p].trainable);
          if (gradient.defined()) {  // on GPUs a frozen bias may choose another GEMM
            const at::Tensor& reference = expected.gradients[g][p];
            const double bound = GetParam().is_cpu() ? 0 : 1e-5 * reference.norm().item<double>();
            EXPECT_LE(max_difference(gradient, reference), bound) << mixed[g].params[p].name;
          }
        }
      }
    }
  }
}

TEST_P(DecoderOn, PaddedRowsOfTheTableChangeNothingAndGetNoGradient) {
  for (const std::string name : {"opt-350m", "opt-untied", "bloom-4-heads"}) {
    SCOPED_TRACE(name);
    GoldenCase c(name);
    PlainSource exact(Decoder(c.spec).groups(), at::kFloat, GetParam());
    c.fill(exact);
    const Pass expected = run(c, exact);
    c.spec.padded_vocab = c.spec.vocab + 9;
    const Decoder decoder(c.spec);
    PlainSource padded(decoder.groups(), at::kFloat, GetParam());
    c.fill(padded);
    const bool tied = c.spec.tied_head;
    const GroupId table_group = tied ? 0 : static_cast<GroupId>(c.spec.layers + 1);
    const int table = tied ? 0 : static_cast<int>(padded.groups()[table_group].params.size()) - 1;
    padded.value(table_group, table).slice(0, c.spec.vocab).fill_(1e4);
    const Pass pass = run(c, padded);
    EXPECT_LE(max_difference(pass.out.logp, expected.out.logp), fp32_tolerance(GetParam()));
    const at::Tensor gradient = padded.gradient(table_group, table);
    EXPECT_EQ(gradient.slice(0, c.spec.vocab).abs().max().item<float>(), 0);
    EXPECT_LE(
        max_difference(gradient.slice(0, 0, c.spec.vocab), exact.gradient(table_group, table)),
        1e-5);
  }
}

TEST_P(DecoderOn, SixteenBitResultsAreCloseToThirtyTwo) {
  // A ReLU on the wrong side of zero costs these tiny gradients more than their values.
  const std::map<at::ScalarType, double> gradient_bound{{at::kHalf, 3e-2}, {at::kBFloat16, 0.2}};
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const std::string& name : kGoldenCases) {
      SCOPED_TRACE(name + " " + c10::toString(dtype));
      const GoldenCase c(name);
      PlainSource exact(Decoder(c.spec).groups(), at::kFloat, GetParam());
      PlainSource rounded(Decoder(c.spec).groups(), dtype, GetParam());
      c.fill(rounded);
      for (size_t g = 0; g < exact.groups().size(); ++g) {  // the same values in both
        for (size_t p = 0; p < exact.groups()[g].params.size(); ++p) {
          const auto group = static_cast<GroupId>(g);
          exact.value(group, static_cast<int>(p)).copy_(rounded.value(group, static_cast<int>(p)));
        }
      }
      const Pass expected = run(c, exact);
      const Pass pass = run(c, rounded);
      EXPECT_EQ(pass.out.logp.scalar_type(), at::kFloat);
      const double scale = expected.out.logp.abs().max().item<double>();
      EXPECT_LE(max_difference(pass.out.logp, expected.out.logp), 2e-2 * scale);
      for (size_t g = 0; g < exact.groups().size(); ++g) {
        double square = 0;
        double error = 0;
        for (size_t p = 0; p < expected.gradients[g].size(); ++p) {
          const at::Tensor gradient = pass.gradients[g][p];
          EXPECT_EQ(gradient.scalar_type(), dtype);
          square += std::pow(expected.gradients[g][p].norm().item<double>(), 2);
          error += std::pow(
              (gradient.to(at::kFloat) - expected.gradients[g][p]).norm().item<double>(), 2);
        }
        EXPECT_LE(std::sqrt(error), gradient_bound.at(dtype) * std::sqrt(square))
            << exact.groups()[g].name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DecoderOn, testing::ValuesIn(testing_support::test_devices()),
                         [](const auto& info) {
                           return c10::DeviceTypeName(info.param.type(), /*lower_case=*/true);
                         });

std::vector<GroupId> groups_of(const std::vector<PlainSource::Use>& uses, Phase phase) {
  std::vector<GroupId> groups;
  for (const PlainSource::Use& use : uses) {
    if (use.phase == phase) {
      groups.push_back(use.group);
    }
  }
  return groups;
}

TEST(Decoder, GroupsAreOpenedOneAtATimeInTheStatedOrderAndBackwardsInReverse) {
  for (const std::string& name : kGoldenCases) {
    for (const bool value_head : {false, true}) {
      const GoldenCase c(name, value_head);
      const Decoder decoder(c.spec);
      PlainSource params(decoder.groups(), at::kFloat, c10::kCPU);
      c.fill(params);
      std::shared_ptr<Saved> saved;
      const TokenBatch batch = c.batch(c10::kCPU);
      if (value_head) {
        decoder.values(params, batch, Phase::kForward, &saved);
        decoder.values_backward(params, saved, c.golden.at("value_weights"));
      } else {
        decoder.logprobs(params, batch, c.golden.at("targets"), Phase::kForward, false, &saved);
        decoder.logprobs_backward(params, saved, c.golden.at("weights"));
      }
      std::vector<GroupId> order = decoder.forward_order();
      EXPECT_EQ(groups_of(params.opened, Phase::kForward), order);
      std::reverse(order.begin(), order.end());
      EXPECT_EQ(groups_of(params.opened, Phase::kBackward), order);
      EXPECT_THAT(params.reduced, ElementsAre(3, 2, 1, 0));
      EXPECT_EQ(params.max_leases, 1);
      EXPECT_EQ(params.dropped_gradients, 0);
    }
  }
}

TEST(Decoder, EveryNameIsUniqueAndAnUntiedOrValueHeadHasItsOwnParameter) {
  for (const std::string& name : kGoldenCases) {
    const GoldenCase c(name);
    std::set<std::string> names;
    size_t count = 0;
    for (const GroupSpec& group : Decoder(c.spec).groups()) {
      for (const ParamSpec& param : group.params) {
        names.insert(param.name);
        ++count;
      }
    }
    EXPECT_EQ(names.size(), count);
    EXPECT_EQ(names.contains("head.table.weight"), !c.spec.tied_head);
    EXPECT_EQ(names.contains("head.project_out.weight"), name == "opt-350m");
  }
}

TEST(Decoder, AnOverlongSequenceIsRefusedBeforeAnyGroupIsOpened) {
  const GoldenCase c("gpt2");
  const Decoder decoder(c.spec);
  PlainSource params(decoder.groups(), at::kFloat, c10::kCPU);
  const TokenBatch batch{at::zeros({35}, at::kLong), ops::Packing::of({2, 33}, c10::kCPU)};
  try {
    decoder.forward(params, batch, Phase::kForward);
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("33 tokens"));
    EXPECT_THAT(error.what(), HasSubstr("32 positions"));
  }
  EXPECT_TRUE(params.opened.empty());
  EXPECT_THROW(TokenBatch::of(std::vector<int64_t>(33, 5), {33}, c.spec, c10::kCPU), InputError);
}

TEST(Decoder, ATokenOutsideTheVocabularyIsRefusedByNumber) {
  const GoldenCase c("gpt2");
  for (const int64_t token : {c.spec.vocab, int64_t{-1}}) {
    try {
      TokenBatch::of({1, token}, {2}, c.spec, c10::kCPU);
      FAIL() << "accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("token " + std::to_string(token)));
    }
  }
}

TEST(Decoder, CheckpointingKeepsBlockInputsOnlyAndABackwardLeavesNothing) {
  const GoldenCase c("opt-350m");
  const Decoder decoder(c.spec);
  PlainSource params(decoder.groups(), at::kFloat, c10::kCPU);
  c.fill(params);
  for (const Checkpointing mode : {Checkpointing::kNone, Checkpointing::kFull, Checkpointing{2}}) {
    std::shared_ptr<Saved> saved;
    decoder.logprobs(params, c.batch(c10::kCPU), c.golden.at("targets"), Phase::kForward, false,
                     &saved, mode);
    for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
      EXPECT_EQ(saved->blocks.at(layer).qkv.defined(), !mode.recomputes(layer));
      EXPECT_EQ(saved->block_inputs.at(layer).defined(), mode.recomputes(layer));
    }
    decoder.logprobs_backward(params, saved, c.golden.at("weights"));
    for (const BlockSaved& block : saved->blocks) {
      EXPECT_FALSE(block.qkv.defined() || block.attention.out.defined() ||
                   block.activated.defined() || block.fc1_out.defined() ||
                   block.attn.norm_input.defined() || block.mlp.branch_input.defined());
    }
    for (const at::Tensor& input : saved->block_inputs) {
      EXPECT_FALSE(input.defined());
    }
    EXPECT_FALSE(saved->hidden.defined() || saved->embed.tokens.defined() ||
                 saved->head.project_input.defined());
  }
}

TEST(Decoder, ASecondBackwardOfOneForwardThrows) {
  const GoldenCase c("opt-125m");
  const Decoder decoder(c.spec);
  PlainSource params(decoder.groups(), at::kFloat, c10::kCPU);
  c.fill(params);
  std::shared_ptr<Saved> saved;
  decoder.logprobs(params, c.batch(c10::kCPU), c.golden.at("targets"), Phase::kForward, false,
                   &saved);
  decoder.logprobs_backward(params, saved, c.golden.at("weights"));
  EXPECT_THROW(decoder.logprobs_backward(params, saved, c.golden.at("weights")), StateError);
  EXPECT_THROW(decoder.values_backward(params, nullptr, c.golden.at("weights")), StateError);
}

TEST(Decoder, ABackwardOfAnotherForwardThrowsBeforeAnyGroupIsOpened) {
  const GoldenCase c("opt-125m");
  const Decoder decoder(c.spec);
  PlainSource params(decoder.groups(), at::kFloat, c10::kCPU);
  c.fill(params);
  std::shared_ptr<Saved> plain;
  std::shared_ptr<Saved> learned;
  decoder.logprobs(params, c.batch(c10::kCPU), c.golden.at("targets"), Phase::kForward, false,
                   &plain);
  decoder.learn_logprobs(params, c.batch(c10::kCPU), c.golden.at("targets"), c.golden.at("weights"),
                         &learned);
  params.opened.clear();
  EXPECT_THROW(decoder.learn_backward(params, plain), StateError);
  EXPECT_THROW(decoder.logprobs_backward(params, learned, c.golden.at("weights")), StateError);
  EXPECT_THROW(decoder.values_backward(params, learned, c.golden.at("weights")), StateError);
  EXPECT_TRUE(params.opened.empty());
}

TEST(Decoder, LogprobsOfAValueModelAndValuesOfALanguageModelThrow) {
  const GoldenCase language("gpt2");
  const GoldenCase critic("gpt2", /*value_head=*/true);
  PlainSource params(Decoder(critic.spec).groups(), at::kFloat, c10::kCPU);
  const TokenBatch batch = critic.batch(c10::kCPU);
  EXPECT_THROW(Decoder(critic.spec)
                   .logprobs(params, batch, critic.golden.at("targets"), Phase::kForward, false),
               StateError);
  EXPECT_THROW(Decoder(language.spec).values(params, batch, Phase::kForward), StateError);
  EXPECT_TRUE(params.opened.empty());
}

/// Counts the calls of the seams and doubles what the branches give.
class Doubling : public BlockReduce {
 public:
  at::Tensor after_attention(at::Tensor partial) const override {
    ++attention;
    return partial.mul_(2);
  }
  at::Tensor after_mlp(at::Tensor partial) const override {
    ++mlp;
    return partial.mul_(2);
  }
  mutable int attention = 0;
  mutable int mlp = 0;
};

TEST(Decoder, HalvedProjectionsWithADoublingSeamGiveTheSameResult) {
  const GoldenCase c("bloom-4-heads");
  const auto seam = std::make_shared<Doubling>();
  const Decoder decoder(c.spec, seam);
  PlainSource params(decoder.groups(), at::kFloat, c10::kCPU);
  c.fill(params);
  for (GroupId group = 1; group <= c.spec.layers; ++group) {
    for (size_t p = 0; p < params.groups()[group].params.size(); ++p) {
      const std::string& name = params.groups()[group].params[p].name;
      if (name.find("attn_out") != std::string::npos || name.find("fc2") != std::string::npos) {
        params.value(group, static_cast<int>(p)).mul_(0.5);
      }
    }
  }
  const auto out =
      decoder.logprobs(params, c.batch(c10::kCPU), c.golden.at("targets"), Phase::kForward, false);
  EXPECT_LE(max_difference(out.logp, c.golden.at("logp")), 1e-5);
  EXPECT_EQ(seam->attention, c.spec.layers);
  EXPECT_EQ(seam->mlp, c.spec.layers);
}

}  // namespace
}  // namespace reknit
