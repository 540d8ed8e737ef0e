// Reading a DeepSpeed config: what is taken, what is refused, and how it is said.
#include "reknit/config/deepspeed.h"

#include "reknit/config/deepspeed_keys.h"
#include "reknit/config/json_path.h"
#include "reknit/config/json_text.h"
#include "tests/support/golden.h"

#include <gmock/gmock.h>

#include <fstream>
#include <set>

namespace reknit {
namespace {

using nlohmann::json;
using testing::HasSubstr;

RunShape shape(int64_t ranks = 1, int64_t nodes = 1) {
  return {ranks, "--ranks", nodes, "--nodes", false};
}

ConfigReading read(const std::string& text, const RunShape& where = shape()) {
  return read_deepspeed(parse_json_text(text, "ds.json"), where, "ds.json");
}

/// All errors in one text, as the user sees them.
std::string errors(const std::string& text, const RunShape& where = shape()) {
  try {
    require_valid(read(text, where).findings);
  } catch (const UsageError& error) {
    return str(error.what(), " | ", error.help());
  }
  return "valid";
}

std::string notes(const std::string& text, const RunShape& where = shape()) {
  std::string out;
  for (const Finding& finding : read(text, where).findings) {
    out += finding.severity == Severity::kError ? "" : to_line(finding) + "\n";
  }
  return out;
}

TEST(DeepSpeedKeys, EveryKeyIsDeclaredOnceWithASentenceAndAParent) {
  std::set<std::string_view> seen;
  for (const KeySpec& key : deepspeed_keys()) {
    EXPECT_TRUE(seen.insert(key.path).second) << key.path;
    EXPECT_TRUE(key.sentence.ends_with(".") || key.sentence.ends_with(")")) << key.path;
    EXPECT_TRUE(key.parent().empty() || seen.contains(key.parent())) << key.path;
    EXPECT_EQ(key.reason.empty(), key.fate == KeyFate::kImplemented) << key.path;
    const bool holds = key.fate == KeyFate::kImplemented && key.kind != KeyKind::kSection;
    EXPECT_EQ(key.target != nullptr, holds) << key.path;
    EXPECT_FALSE(json::parse(key.default_json, nullptr, false).is_discarded()) << key.path;
    const bool chooses = key.kind == KeyKind::kChoice || key.kind == KeyKind::kTextList;
    EXPECT_EQ(chooses, !key.choices.empty()) << key.path;
  }
}

TEST(DeepSpeedKeys, AliasesPointAtDeclaredKeys) {
  for (const KeyAlias& alias : deepspeed_aliases()) {
    EXPECT_NE(find_key(alias.replacement), nullptr) << alias.path;
    EXPECT_EQ(find_key(alias.path), nullptr) << alias.path;
  }
}

TEST(DeepSpeedKeys, DefaultsWrittenInTheTableAreTheStructsDefaults) {
  DeepSpeedConfig standard;
  for (const KeySpec& key : deepspeed_keys()) {
    if (key.target == nullptr) {
      continue;
    }
    const json declared = json::parse(key.default_json);
    std::visit(
        [&](auto member) {
          using Type = std::remove_pointer_t<decltype(member)>;
          if constexpr (std::is_same_v<Type, bool> || std::is_same_v<Type, std::vector<double>> ||
                        std::is_same_v<Type, std::vector<std::string>>) {
            EXPECT_EQ(declared, json(*member)) << key.path;
          } else if constexpr (std::is_arithmetic_v<Type>) {
            EXPECT_EQ(declared.get<double>(), static_cast<double>(*member)) << key.path;
          } else if constexpr (std::is_same_v<Type, std::string>) {
            EXPECT_EQ(declared.is_null() ? "" : declared.get<std::string>(), *member) << key.path;
          } else if constexpr (!std::is_same_v<Type, std::monostate> &&
                               !std::is_same_v<decltype(member), std::monostate>) {
            EXPECT_TRUE(declared.is_null() && !member->has_value()) << key.path;
          }
        },
        key.target(standard));
  }
}

TEST(DeepSpeedKeys, TheDocumentationHoldsTheTable) {
  std::ifstream file(source_root() / "docs" / "deepspeed_config.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(page, HasSubstr(deepspeed_keys_markdown()));
}

TEST(DeepSpeedConfig, AnEmptyConfigIsAllDefaults) {
  const ConfigReading reading = read("{}");
  EXPECT_TRUE(reading.findings.empty());
  EXPECT_EQ(reading.config.gradient_clipping, 1.0);
  EXPECT_EQ(reading.config.precision(), Precision::kFp32);
  EXPECT_TRUE(reading.config.optimizer.type.empty());
}

TEST(DeepSpeedConfig, ValuesLandInTheirMembers) {
  const ConfigReading reading = read(R"({
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5,
    "steps_per_print": 10, "communication_data_type": "FP16",
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "overlap_comm": false,
      "stage3_param_persistence_threshold": 1e4, "stage3_prefetch_bucket_size": 3e7,
      "mics_shard_size": 2},
    "fp16": {"enabled": true, "initial_scale_power": 12, "hysteresis": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
    "scheduler": {"type": "warmupdecaylr", "params": {"total_num_steps": 100,
      "warmup_max_lr": 1e-4}},
    "hybrid_engine": {"enabled": true, "pin_parameters": false}})",
                                     shape(4, 2));
  EXPECT_FALSE(has_errors(reading.findings));
  const DeepSpeedConfig& c = reading.config;
  EXPECT_EQ(reading.batch.accumulation, 2);
  EXPECT_EQ(c.communication_data_type, "fp16");
  EXPECT_EQ(c.zero.stage, 3);
  EXPECT_EQ(c.zero.persistence_threshold, 10'000);
  EXPECT_EQ(c.zero.mics_shard_size, 2);
  EXPECT_EQ(c.precision(), Precision::kFp16);
  EXPECT_EQ(c.fp16.initial_scale_power, 12);
  EXPECT_EQ(c.optimizer.type, "adamw");
  EXPECT_EQ(c.optimizer.betas[1], 0.95);
  EXPECT_EQ(c.scheduler.type, "WarmupDecayLR");
  EXPECT_EQ(c.scheduler.total_num_steps, 100);
  EXPECT_FALSE(c.hybrid.pin_parameters);
}

TEST(DeepSpeedConfig, UnknownKeysNameThePathTheValueAndTheNearestKey) {
  EXPECT_THAT(errors(R"({"zero_optimization":{"stage":3,"stage3_prefetch_bucket":1}})"),
              testing::AllOf(HasSubstr("zero_optimization.stage3_prefetch_bucket = 1"),
                             HasSubstr("did you mean "
                                       "zero_optimization.stage3_prefetch_bucket_size?")));
  EXPECT_THAT(errors(R"({"gradient_cliping":1.0})"),
              testing::AllOf(HasSubstr("gradient_cliping = 1.0"),
                             HasSubstr("did you mean gradient_clipping?")));
  EXPECT_THAT(errors(R"({"stage": 3})"), HasSubstr("did you mean zero_optimization.stage?"));
  EXPECT_THAT(errors(R"({"optimizer":{"type":"Adam","params":{"weigth_decay":0}}})"),
              HasSubstr("did you mean optimizer.params.weight_decay?"));
  EXPECT_THAT(errors(R"({"activation_checkpointing":{"cpu_checkpoint":true}})"),
              HasSubstr("cpu_checkpointing?"));
}

TEST(DeepSpeedConfig, AllProblemsAreReportedTogether) {
  const std::string text = errors(R"({"gradient_cliping": 1.0, "zero_optimization": {"stage": 5},
                                      "fp16": {"enabled": 1}})");
  EXPECT_THAT(text, HasSubstr("3 settings are wrong"));
  EXPECT_THAT(text, HasSubstr("gradient_cliping = 1.0: there is no such key\n"
                              "    (did you mean gradient_clipping?)\n"));
  EXPECT_THAT(text, HasSubstr("zero_optimization.stage = 5: must be 3 or less"));
  EXPECT_THAT(text, HasSubstr("fp16.enabled = 1: must be true or false"));
}

TEST(DeepSpeedConfig, BothHalfPrecisionsAreRefused) {
  EXPECT_THAT(errors(R"({"fp16":{"enabled":true},"bf16":{"enabled":true}})"),
              HasSubstr("fp16.enabled and bf16.enabled are both true"));
  EXPECT_THAT(errors(R"({"fp16":{"enabled":true},"bfloat16":{"enabled":true}})"),
              HasSubstr("both true"));
  EXPECT_EQ(read(R"({"bfloat16":{"enabled":true}})").config.precision(), Precision::kBf16);
}

TEST(DeepSpeedConfig, DeprecatedNamesAreMappedWithANote) {
  EXPECT_THAT(errors(R"({"zero_optimization":{"cpu_offload":true}})"),
              HasSubstr("zero_optimization.offload_optimizer.device = \"cpu\": is not supported"));
  EXPECT_THAT(notes(R"({"zero_optimization":{"cpu_offload":true}})"),
              HasSubstr("read as zero_optimization.offload_optimizer.device"));
  EXPECT_EQ(errors(R"({"zero_optimization":{"cpu_offload":false}})"), "valid");
  EXPECT_EQ(read(R"({"zero_optimization":true})").config.zero.stage, 1);
  EXPECT_EQ(
      read(R"({"zero_optimization":{"prefetch_bucket_size":7}})").config.zero.prefetch_bucket_size,
      7);
}

TEST(DeepSpeedConfig, AnOldNameBesideItsReplacementIsAnError) {
  EXPECT_THAT(errors(R"({"zero_optimization":{"prefetch_bucket_size":7,
                         "stage3_prefetch_bucket_size":7}})"),
              HasSubstr("is another name of zero_optimization.stage3_prefetch_bucket_size"));
}

TEST(DeepSpeedConfig, IntegersMayBeWrittenAsFloatsButNotAsFractions) {
  EXPECT_EQ(read(R"({"zero_optimization":{"stage3_prefetch_bucket_size":5e7}})")
                .config.zero.prefetch_bucket_size,
            50'000'000);
  const std::string text = errors(R"({"zero_optimization":{"stage":3,
                                      "stage3_prefetch_bucket_size":921600.9}})");
  EXPECT_THAT(text, HasSubstr("stage3_prefetch_bucket_size = 921600.9: must be a whole number"));
  EXPECT_THAT(text, HasSubstr("write stage3_prefetch_bucket_size 921601"));
  EXPECT_THAT(errors(R"({"steps_per_print": true})"), HasSubstr("must be a whole number"));
  EXPECT_THAT(errors(R"({"steps_per_print": 1e300})"), HasSubstr("must be a whole number"));
  EXPECT_THAT(errors(R"({"steps_per_print": 18446744073709551615})"),
              HasSubstr("must be a whole number"));
}

TEST(DeepSpeedConfig, OperationsToLogAreKnownOnes) {
  const auto config = read(R"({"comms_logger":{"enabled":true,"prof_all":false,
                               "prof_ops":["all_gather","all_to_all_single"]}})")
                          .config;
  EXPECT_TRUE(config.comms_logger.enabled);
  EXPECT_EQ(config.comms_logger.prof_ops,
            (std::vector<std::string>{"all_gather", "all_to_all_single"}));
  EXPECT_THAT(errors(R"({"comms_logger":{"prof_ops":["gather"]}})"),
              HasSubstr("each must be one of all_gather|"));
  EXPECT_THAT(errors(R"({"comms_logger":{"prof_ops":[3]}})"), HasSubstr("a list of texts"));
}

TEST(DeepSpeedConfig, AutoIsRefusedInTheTripleAndNotedElsewhere) {
  for (const char* key :
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
    const std::string text = errors(str("{\"", key, "\": \"auto\"}"));
    EXPECT_THAT(text, HasSubstr(str(key, " = \"auto\": nothing fills in \"auto\" here")));
    EXPECT_THAT(text, testing::Not(HasSubstr("do not fit")));
  }
  EXPECT_THAT(notes(R"({"zero_optimization":{"reduce_bucket_size":"auto"}})"),
              HasSubstr("taken as the default, 5e8"));
  EXPECT_FALSE(read(R"({"optimizer":{"type":"AdamW","params":{"lr":"auto"}}})")
                   .config.optimizer.lr.has_value());
}

TEST(DeepSpeedConfig, TheBatchOfTheThirdReportIsRefusedWithItsCause) {
  const std::string text =
      errors(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1536})", shape(8));
  EXPECT_THAT(text, HasSubstr("B = 8 (ds.json)"));
  EXPECT_THAT(text, HasSubstr("m = 1536 (ds.json)"));
  EXPECT_THAT(text, HasSubstr("W = 8 (--ranks)"));
  EXPECT_THAT(text, HasSubstr("look exchanged"));
}

TEST(DeepSpeedConfig, MicsIsJudgedAgainstRanksNodesAndStage) {
  auto mics = [](int size, bool hierarchical, int stage = 3) {
    return str(R"({"zero_optimization":{"stage":)", stage, R"(,"mics_shard_size":)", size,
               R"(,"mics_hierarchical_params_gather":)", hierarchical ? "true" : "false", "}}");
  };
  EXPECT_EQ(errors(mics(2, false), shape(4, 2)), "valid");
  EXPECT_EQ(errors(mics(4, true), shape(4, 2)), "valid");
  EXPECT_EQ(errors(mics(1, false), shape(4, 2)), "valid");
  EXPECT_THAT(errors(mics(3, false), shape(4, 2)), HasSubstr("does not divide 4 ranks"));
  EXPECT_THAT(errors(mics(2, true), shape(4, 2)), HasSubstr("must span whole nodes"));
  EXPECT_THAT(errors(mics(4, true), shape(4, 1)), HasSubstr("more than one"));
  EXPECT_THAT(errors(mics(6, true), shape(12, 3)), HasSubstr("multiple of 4"));
  EXPECT_THAT(errors(mics(-1, true), shape(4, 2)), HasSubstr("needs"));
  EXPECT_THAT(errors(mics(0, false), shape(4, 2)), HasSubstr("1 or more"));
  EXPECT_THAT(errors(mics(2, false, 2), shape(4, 2)), HasSubstr("stage 3, not 2"));
  EXPECT_THAT(errors(mics(2, false), shape(4, 3)), HasSubstr("cannot be spread over 3"));
}

TEST(DeepSpeedConfig, SecondCopiesFitIntoANode) {
  const auto hpz = [](int size, const std::string& more = "") {
    return str(R"({"zero_optimization":{"stage":3,"zero_hpz_partition_size":)", size, more, "}}");
  };
  EXPECT_EQ(errors(hpz(2), shape(8, 2)), "valid");
  EXPECT_EQ(errors(hpz(1, R"(,"mics_shard_size":2)"), shape(8, 2)), "valid");
  EXPECT_THAT(errors(hpz(8), shape(8, 2)), HasSubstr("the 4 ranks of a node"));
  EXPECT_THAT(errors(hpz(2, R"(,"mics_shard_size":2)"), shape(8, 2)), HasSubstr("combined"));
  EXPECT_THAT(errors(R"({"zero_optimization":{"stage":2,"zero_hpz_partition_size":2}})", shape(4)),
              HasSubstr("stage 3, not 2"));
}

TEST(DeepSpeedConfig, GradientsAreReducedInAnyPrecision) {
  EXPECT_EQ(errors(R"({"bf16":{"enabled":true},"communication_data_type":"fp32"})"), "valid");
  EXPECT_EQ(errors(R"({"bf16":{"enabled":true},"communication_data_type":"bf16"})"), "valid");
  EXPECT_THAT(errors(R"({"communication_data_type":"fp8"})"), HasSubstr("fp32|fp16|bf16"));
}

TEST(DeepSpeedConfig, MicsGroupsAreRunsAndTheirColumns) {
  using Groups = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(shard_groups(4, 2), (Groups{{0, 1}, {2, 3}}));
  EXPECT_EQ(replica_groups(4, 2), (Groups{{0, 2}, {1, 3}}));
  EXPECT_EQ(node_groups(8, 4, 2), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
}

TEST(DeepSpeedConfig, RefusedKeysAreFineAtTheirDefaultsAndOnlyThere) {
  EXPECT_EQ(errors(R"({"amp":{"enabled":false,"opt_level":"O1"}, "elasticity":{},
    "zero_optimization":{"zero_quantized_weights":false, "zero_hpz_partition_size":1,
    "offload_param":{"device":"none"},"offload_optimizer":{"device":"none","pin_memory":false}},
    "compression_training":{"weight_quantization":{"shared_parameters":{"enabled":false}}}})"),
            "valid");
  EXPECT_THAT(errors(R"({"amp":{"enabled":true}})"), HasSubstr("amp"));
  EXPECT_THAT(errors(R"({"zero_optimization":{"zero_quantized_weights":true}})"),
              HasSubstr("is not supported"));
  EXPECT_THAT(errors(R"({"hybrid_engine":{"inference_tp_size":2}})"),
              HasSubstr("inference_tp_size = 2: is not supported"));
  EXPECT_THAT(errors(R"({"compression_training":{"a":{"b":{"enabled":true}}}})"),
              HasSubstr("compression_training"));
}

TEST(DeepSpeedConfig, WhatDeepSpeedChatWritesIsAccepted) {
  EXPECT_EQ(errors(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
    "steps_per_print": 10,
    "zero_optimization": {"stage": 3, "overlap_comm": true, "offload_param": {"device": "none"},
      "offload_optimizer": {"device": "none"}, "stage3_param_persistence_threshold": 1e4,
      "stage3_max_live_parameters": 3e7, "stage3_prefetch_bucket_size": 3e7,
      "memory_efficient_linear": false},
    "fp16": {"enabled": true, "loss_scale_window": 100}, "gradient_clipping": 1.0,
    "prescale_gradients": false, "wall_clock_breakdown": false,
    "hybrid_engine": {"enabled": true, "max_out_tokens": 512, "inference_tp_size": 1,
      "release_inference_cache": false, "pin_parameters": true, "tp_gather_partition_size": 8},
    "tensorboard": {"enabled": false, "output_path": "x/ds_tensorboard_logs/",
      "job_name": "step3_actor_tensorboard"}})",
                   shape(4)),
            "valid");
}

TEST(DeepSpeedConfig, SchedulesTakeOnlyTheirOwnParameters) {
  EXPECT_THAT(errors(R"({"scheduler":{"type":"WarmupLR","params":{"cos_min_ratio":0.1}}})"),
              HasSubstr("WarmupLR has no such parameter"));
  EXPECT_THAT(
      errors(R"({"scheduler":{"type":"OneCycle","params":{"warmup_num_steps":1}}})"),
      testing::AllOf(HasSubstr("OneCycle has no such parameter"),
                     HasSubstr("cycle_min_lr: is missing"), HasSubstr("cycle_max_lr: is missing")));
  EXPECT_THAT(errors(R"({"scheduler":{"type":"WarmupRL"}})"),
              testing::AllOf(HasSubstr("must be one of WarmupLR|WarmupDecayLR"),
                             HasSubstr("did you mean WarmupLR?")));
  EXPECT_EQ(
      read(R"({"scheduler":{"type":"WarmupDecayLR","params":{}}})").config.scheduler.warmup_max_lr,
      1e-3);
  const std::string cycle =
      R"({"optimizer":{"type":"SGD"},"scheduler":{"type":"onecycle","params":{"cycle_min_lr":1,)"
      R"("cycle_max_lr":2}}})";
  EXPECT_EQ(errors(cycle), "valid");
  EXPECT_THAT(notes(cycle), HasSubstr("has no effect with sgd"));
}

TEST(DeepSpeedConfig, EveryOptimizerOfOursIsReadInAnyCase) {
  for (const char* type : {"Adam", "AdamW", "Adagrad", "Lamb", "LION", "sgd", "muon"}) {
    EXPECT_EQ(errors(str(R"({"optimizer":{"type":")", type,
                         R"(","params":{"lr":1,"weight_decay":0.1}}})")),
              "valid")
        << type;
  }
  const OptimizerConfig muon = read(R"({"optimizer":{"type":"Muon"}})").config.optimizer;
  EXPECT_EQ(muon.momentum, 0.95);
  EXPECT_EQ(muon.nesterov, true);
  EXPECT_EQ(muon.eps, 1e-10);
  EXPECT_EQ(muon.betas, (std::vector<double>{0.9, 0.95}));
  const OptimizerConfig lion = read(R"({"optimizer":{"type":"Lion"}})").config.optimizer;
  EXPECT_EQ(lion.betas, (std::vector<double>{0.9, 0.99}));
  const OptimizerConfig sgd =
      read(R"({"optimizer":{"type":"SGD","params":{"momentum":0.5,"nesterov":true}}})")
          .config.optimizer;
  EXPECT_EQ(sgd.momentum, 0.5);
  EXPECT_EQ(sgd.nesterov, true);
}

TEST(DeepSpeedConfig, OptimizersAndParametersThatAreNotBuiltAreRefusedWithAReason) {
  EXPECT_THAT(
      errors(R"({"optimizer":{"type":"Lamd"}})"),
      testing::AllOf(HasSubstr("must be one of Adam|AdamW"), HasSubstr("did you mean Lamb")));
  for (const char* type : {"Adam", "Adagrad", "Lamb", "Lion", "SGD", "Muon"}) {
    const std::string config =
        str(R"({"optimizer":{"type":")", type, R"(","params":{"lr":1,"decay_all":true}}})");
    EXPECT_TRUE(read(config).config.optimizer.decay_all) << type;
    EXPECT_EQ(errors(config), errors(R"({})")) << type;
  }
  EXPECT_THAT(errors(R"({"optimizer":{"type":"OneBitAdam"}})"), HasSubstr("one bit"));
  EXPECT_THAT(errors(R"({"optimizer":{"type":"ZeroOneAdam"}})"), HasSubstr("one bit"));
  EXPECT_THAT(errors(R"({"optimizer":{"type":"MuSGD"}})"), HasSubstr("without Mu"));
  EXPECT_THAT(errors(R"({"optimizer":{"type":"Lion","params":{"momentum":0.9}}})"),
              HasSubstr("lion has no such parameter"));
  EXPECT_THAT(errors(R"({"optimizer":{"type":"SGD","params":{"nesterov":true}}})"),
              HasSubstr("needs a momentum"));
  EXPECT_THAT(errors(R"({"optimizer":{"type":"Lamb","params":{"min_coeff":11}}})"),
              HasSubstr("above max_coeff"));
  EXPECT_THAT(errors(R"({"optimizer":{"type":"AdamW","params":{"betas":[0.9,1.0]}}})"),
              HasSubstr("below 1"));
  EXPECT_THAT(errors(R"({"optimizer":{"params":{"lr":1e-3}}})"), HasSubstr("no optimizer.type"));
  EXPECT_THAT(errors(R"({"optimizer":{"type":"adamw","params":{"adam_w_mode":false}}})"),
              HasSubstr("contradicts the type AdamW"));
}

TEST(DeepSpeedConfig, LossScaleConstantsAreChecked) {
  EXPECT_THAT(errors(R"({"fp16":{"enabled":true,"loss_scale":-1}})"), HasSubstr("0 or more"));
  EXPECT_THAT(errors(R"({"fp16":{"enabled":true,"loss_scale":false}})"),
              HasSubstr("finite number"));
  EXPECT_THAT(errors(R"({"fp16":{"enabled":true,"loss_scale_window":0}})"), HasSubstr("1 or more"));
  EXPECT_THAT(errors(R"({"fp16":{"enabled":true,"min_loss_scale":0}})"), HasSubstr("above 0"));
  EXPECT_EQ(errors(R"({"fp16":{"enabled":true,"loss_scale":128,"min_loss_scale":0}})"), "valid");
  EXPECT_THAT(errors(R"({"fp16":{"enabled":true,"initial_scale_power":3,"min_loss_scale":9}})"),
              HasSubstr("is above the scale that fp16.initial_scale_power = 3 begins with"));
  EXPECT_EQ(errors(R"({"fp16":{"enabled":true,"initial_scale_power":3,"min_loss_scale":8}})"),
            "valid");
}

TEST(DeepSpeedConfig, AnythingButAnObjectIsAnError) {
  EXPECT_THAT(errors("[1]"), HasSubstr("not an object"));
  EXPECT_THAT(errors(R"({"fp16": 3})"), HasSubstr("must be an object"));
  EXPECT_THAT(errors(R"({"zero_optimization": [true]})"), HasSubstr("must be an object"));
}

}  // namespace
}  // namespace reknit
