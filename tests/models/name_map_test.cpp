// The names of Hugging Face folders, against those that transformers writes.
#include "reknit/models/name_map.h"

#include "reknit/base/error.h"
#include "reknit/models/groups.h"
#include "tests/models/golden_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace reknit {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::set<std::string> names_of(const Tensors& tensors) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    names.insert(name);
  }
  return names;
}

std::set<std::string> required_names(const ModelSpec& spec) {
  std::set<std::string> names;
  for (const NamePiece& piece : name_map(spec)) {
    if (!piece.optional) {
      names.insert(piece.hf_name);
    }
  }
  return names;
}

std::vector<std::string> canonical_names(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (const NamePiece& piece : name_map(spec)) {
    if (!piece.optional) {
      names.push_back(piece.hf_name);
    }
  }
  return names;
}

TEST(NameMap, NamesAreExactlyThoseThatTransformersSaves) {
  for (const std::string& name : kGoldenCases) {
    SCOPED_TRACE(name);
    const GoldenCase c(name);
    EXPECT_EQ(required_names(c.spec), names_of(c.weights));
    const GoldenCase critic(name, /*value_head=*/true);
    EXPECT_EQ(required_names(critic.spec), names_of(critic.with_prefix("value_grad.")));
  }
}

TEST(NameMap, PiecesCoverEveryRowOfEveryParameterOnce) {
  for (const std::string& name : kGoldenCases) {
    const ModelSpec spec = GoldenCase(name).spec;
    const std::vector<GroupSpec> groups = model_groups(spec);
    std::map<std::pair<GroupId, int>, int64_t> next_row;
    for (const NamePiece& piece : name_map(spec)) {
      if (!piece.optional) {
        int64_t& row = next_row[{piece.group, piece.param}];
        EXPECT_EQ(piece.row_begin, row) << piece.hf_name;
        row = piece.row_end;
      }
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t p = 0; p < groups[g].params.size(); ++p) {
        EXPECT_EQ((next_row[{static_cast<GroupId>(g), static_cast<int>(p)}]),
                  groups[g].params[p].shape[0])
            << groups[g].params[p].name;
      }
    }
  }
}

TEST(NameMap, DeepSpeedChatCriticsAreFoundUnderAllTheirPrefixes) {
  for (const std::string& name : kGoldenCases) {
    const GoldenCase critic(name, /*value_head=*/true);
    std::vector<std::string> available;
    for (const auto& [file_name, tensor] : critic.weights) {
      available.push_back(file_name);
    }
    EXPECT_THAT(find_value_head(available), Not(IsEmpty()));
    const std::vector<NamePiece> pieces = name_map(critic.spec);
    const std::vector<std::string> found = match_names(pieces, available);
    const std::set<std::string> distinct(found.begin(), found.end());
    EXPECT_EQ(distinct.size(), available.size()) << name;
    EXPECT_FALSE(distinct.contains("")) << name;
  }
}

TEST(NameMap, PrefixesMayBeMissingOrStacked) {
  const ModelSpec spec = GoldenCase("opt-350m").spec;
  const std::vector<NamePiece> pieces = name_map(spec);
  for (const std::string prefix : {"", "module.", "base_model.model.", "transformer."}) {
    std::vector<std::string> available = canonical_names(spec);
    for (std::string& name : available) {
      name = prefix + name.substr(std::string("model.").size());
    }
    const std::vector<std::string> found = match_names(pieces, available);
    for (size_t i = 0; i < available.size(); ++i) {
      EXPECT_EQ(found[i], available[i]);
    }
  }
}

TEST(NameMap, MissingTensorsAreEmptyAndATiedTableIsFoundAtTheHead) {
  const ModelSpec spec = GoldenCase("gpt2").spec;
  const std::vector<NamePiece> pieces = name_map(spec);
  ASSERT_EQ(pieces[0].hf_name, "transformer.wte.weight");
  EXPECT_EQ(match_names(pieces, {"lm_head.weight"})[0], "lm_head.weight");
  EXPECT_EQ(match_names(pieces, {"lm_head.weight", "wte.weight"})[0], "wte.weight");
  EXPECT_EQ(match_names(pieces, {"transformer.wpe.weight"})[0], "");
  // An untied table is never taken for the embedding.
  const ModelSpec untied = GoldenCase("opt-untied").spec;
  EXPECT_EQ(match_names(name_map(untied), {"lm_head.weight"})[0], "");
}

TEST(NameMap, TwoInexactCandidatesAreRefusedByName) {
  const std::vector<NamePiece> pieces = name_map(GoldenCase("gpt2").spec);
  EXPECT_EQ(match_names(pieces, {"wte.weight", "transformer.wte.weight"})[0],
            "transformer.wte.weight");
  try {
    match_names(pieces, {"wte.weight", "module.wte.weight"});
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("both wte.weight and module.wte.weight"));
  }
}

TEST(NameMap, ValueHeadsArePreferredToScores) {
  EXPECT_EQ(find_value_head({"score.weight", "rwtransformer.v_head.weight"}),
            "rwtransformer.v_head.weight");
  EXPECT_EQ(find_value_head({"score.weight", "model.decoder.x"}), "score.weight");
  EXPECT_EQ(find_value_head({"lm_head.weight"}), "");
}

TEST(NameMap, CausalMasksAreNoParameters) {
  EXPECT_TRUE(is_buffer_name("h.0.attn.bias"));
  EXPECT_TRUE(is_buffer_name("transformer.h.11.attn.masked_bias"));
  EXPECT_FALSE(is_buffer_name("h.0.attn.c_attn.bias"));
}

TEST(NameMap, TheExportedClassIsTheOneThatHasTheTensors) {
  ModelSpec spec = GoldenCase("gpt2").spec;
  EXPECT_EQ(hf_architecture(spec), "GPT2LMHeadModel");
  spec.value_head = true;
  EXPECT_EQ(hf_architecture(spec), "GPT2ForSequenceClassification");
}

TEST(NameMap, NormsStartAtOneBiasesAtZeroAndResidualProjectionsOfGpt2Smaller) {
  const ModelSpec spec = GoldenCase("gpt2").spec;
  std::map<std::string, const ParamSpec*> params;
  const std::vector<GroupSpec> groups = model_groups(spec);
  for (const GroupSpec& group : groups) {
    for (const ParamSpec& param : group.params) {
      params[param.name] = &param;
    }
  }
  EXPECT_EQ(init_kind(spec, *params.at("block.1.mlp_norm.weight")), InitKind::kOnes);
  EXPECT_EQ(init_kind(spec, *params.at("head.norm.bias")), InitKind::kZeros);
  EXPECT_EQ(init_kind(spec, *params.at("embed.tokens.weight")), InitKind::kNormal);
  EXPECT_DOUBLE_EQ(init_std(spec, *params.at("block.0.fc1.weight")), 0.02);
  EXPECT_DOUBLE_EQ(init_std(spec, *params.at("block.0.fc2.weight")), 0.01);
}

}  // namespace
}  // namespace reknit
