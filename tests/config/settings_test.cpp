// File, --set, flags and defaults: who wins, and when it is an error.
#include "reknit/config/settings.h"

#include "reknit/config/json_path.h"

#include <gmock/gmock.h>

namespace reknit {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Outcome {
  ResolvedSettings settings;
  Findings findings;
};

Outcome resolve(const json& file, const std::vector<Setting>& overrides,
                const std::vector<Setting>& flags, const std::vector<Setting>& defaults = {}) {
  Outcome out;
  out.settings = resolve_settings(file, "ds.json", overrides, flags, defaults, out.findings);
  return out;
}

TEST(Settings, SetReplacesTheFile) {
  const auto out = resolve(json::parse(R"({"zero_optimization":{"stage":2,"overlap_comm":true}})"),
                           {parse_set("zero_optimization.stage=3")}, {});
  EXPECT_TRUE(out.findings.empty());
  EXPECT_EQ(out.settings.config,
            json::parse(R"({"zero_optimization":{"stage":3,"overlap_comm":true}})"));
  EXPECT_EQ(out.settings.origins.at("zero_optimization.stage"), "--set");
}

TEST(Settings, SetTakesJsonAndText) {
  EXPECT_EQ(parse_set("a.b=5e8").value, 5e8);
  EXPECT_EQ(parse_set("a.b=true").value, true);
  EXPECT_EQ(parse_set("a.b=[1, 2]").value, json::parse("[1,2]"));
  EXPECT_EQ(parse_set("optimizer.type=AdamW").value, "AdamW");
  EXPECT_THROW(parse_set("a.b"), UsageError);
  EXPECT_THROW(parse_set("=1"), UsageError);
}

TEST(Settings, SetFollowsOtherNames) {
  const auto out = resolve(json::parse(R"({"bf16":{"enabled":false}})"),
                           {parse_set("bfloat16.enabled=true")}, {});
  EXPECT_EQ(*find_path(out.settings.config, "bf16.enabled"), true);
}

TEST(Settings, SetTwiceWithTwoValuesIsAnError) {
  EXPECT_EQ(resolve({}, {parse_set("a=1"), parse_set("a=2")}, {}).findings.size(), 1u);
  EXPECT_TRUE(resolve({}, {parse_set("a=1"), parse_set("a=1")}, {}).findings.empty());
}

TEST(Settings, SetOfASectionTakesTheKeysThatWereSetInIt) {
  const auto out = resolve({}, {parse_set("a.b=1"), parse_set("a={}"), parse_set("a.b=2")}, {});
  EXPECT_TRUE(out.findings.empty());
  EXPECT_EQ(out.settings.config, json::parse(R"({"a":{"b":2}})"));
}

TEST(Settings, SetThroughAValueIsAnError) {
  EXPECT_THROW(resolve(json::parse(R"({"fp16":3})"), {parse_set("fp16.enabled=true")}, {}),
               UsageError);
}

TEST(Settings, AFlagThatContradictsTheFileOrSetIsAnErrorWithBothValues) {
  const Setting flag{"zero_optimization.stage", 2, "--zero-stage"};
  const json file = json::parse(R"({"zero_optimization":{"stage":3}})");
  const auto out = resolve(file, {}, {flag});
  ASSERT_EQ(out.findings.size(), 1u);
  EXPECT_THAT(to_line(out.findings[0]),
              testing::AllOf(HasSubstr("zero_optimization.stage = 3"), HasSubstr("ds.json"),
                             HasSubstr("--zero-stage, which says 2")));
  EXPECT_TRUE(resolve(file, {parse_set("zero_optimization.stage=2")}, {flag}).findings.empty());
}

TEST(Settings, AFlagThatAgreesOrFillsAutoIsFine) {
  const Setting flag{"train_micro_batch_size_per_gpu", 4, "--batch"};
  EXPECT_TRUE(resolve(json::parse(R"({"train_micro_batch_size_per_gpu":4.0})"), {}, {flag})
                  .findings.empty());
  const auto out = resolve(json::parse(R"({"train_micro_batch_size_per_gpu":"auto"})"), {}, {flag});
  EXPECT_EQ(out.settings.config["train_micro_batch_size_per_gpu"], 4);
}

TEST(Settings, DefaultsFillOnlyWhatIsOpen) {
  const auto out =
      resolve(json::parse(R"({"a":1})"), {}, {}, {{"a", 2, "default"}, {"b.c", 3, "default"}});
  EXPECT_EQ(out.settings.config, json::parse(R"({"a":1,"b":{"c":3}})"));
}

}  // namespace
}  // namespace reknit
