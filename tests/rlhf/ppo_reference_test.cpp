// PPO against plain PyTorch: the same answers, every number and the final weights.
#include "reknit/checkpoint/safetensors.h"
#include "reknit/models/groups.h"
#include "tests/checkpoint/checkpoint_support.h"
#include "tests/support/ppo_world.h"

#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using namespace testing_support;
using Json = nlohmann::json;

constexpr int kSteps = 3;

struct Case {
  std::string model;
  PpoRules rules;
  int world;

  std::string name() const {
    return str(model, rules == PpoRules::kStrict ? "-strict-" : "-chat-", world);
  }
};

struct Replay {
  std::vector<PpoRecord> records;
  std::vector<Json> steps;  ///< the sequences of each
  at::Tensor final_logp;    ///< of the first step's sequences
};

PpoSettings settings_of(const Case& c, int64_t eos) {
  PpoSettings settings = tiny_ppo();
  settings.rules = c.rules;
  settings.ppo_epochs = 2;
  settings.sampling.eos = eos;
  for (TrainerSettings* trainer : {&settings.actor, &settings.critic}) {
    trainer->lr = 2e-3;
    trainer->schedule = {.kind = ScheduleKind::kConstantWithWarmup, .warmup = 2};
    auto& adam = std::get<AdamSettings>(trainer->optimizer.kind);
    adam.weight_decay = 0.1;
    // Rounding noise of gradients that are zero in theory stays noise, on any processor.
    adam.eps = 1e-6;
  }
  return settings;
}

Json sequences_of(const Ppo& ppo, int rank) {
  Json all = Json::array();
  for (const Experience& e : ppo.last_experiences()) {
    all.push_back({{"tokens", e.tokens},
                   {"prompt_length", e.prompt_length},
                   {"ended", e.ended},
                   {"sequence", e.sequence},
                   {"rank", rank}});
  }
  return all;
}

// The token that answers hold most often: as end token it ends some of them early.
int64_t frequent_token(const std::filesystem::path& folder) {
  std::map<int64_t, int> counts;
  on_ranks(1, [&](std::shared_ptr<Communicator> comm) {
    PpoWorld world(folder, comm, {});
    Ppo ppo(world.models(), settings_of({"", PpoRules::kStrict, 1}, -1), tiny_prompts());
    ppo.step(0);
    for (const Experience& e : ppo.last_experiences()) {
      for (size_t t = e.prompt_length; t < e.tokens.size(); ++t) {
        ++counts[e.tokens[t]];
      }
    }
  });
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

// What the actor says of the answers and prompts of `sequences`, first tokens apart.
at::Tensor logp_of(Model& actor, const Json& sequences) {
  std::vector<at::Tensor> all;
  for (const Json& sequence : sequences) {
    const auto tokens = sequence.at("tokens").get<std::vector<int64_t>>();
    std::vector<int64_t> targets(tokens.begin() + 1, tokens.end());
    targets.push_back(-1);
    const auto batch = TokenBatch::of(tokens, {static_cast<int64_t>(tokens.size())},
                                      actor.decoder.spec(), test_device());
    const auto scored =
        actor.decoder.logprobs(actor.store, batch, at::tensor(targets, at::kLong).to(test_device()),
                               Phase::kForward, false);
    actor.store.finish_pass();
    all.push_back(scored.logp.narrow(0, 0, scored.logp.numel() - 1));
  }
  return at::cat(all).cpu();
}

// Runs the steps and leaves everything that the script and the comparison need in `out`.
Replay run_case(const Case& c, int64_t eos, const std::filesystem::path& folder,
                const std::filesystem::path& out) {
  Replay run;
  std::mutex mutex;
  std::filesystem::create_directories(out);
  on_ranks(c.world, [&](std::shared_ptr<Communicator> comm) {
    PpoWorld world(folder, comm, {});
    const auto head = [&](Model& model) {
      const ModelSpec& spec = model.decoder.spec();
      return model.store.read_full(head_group(spec), HeadParams::of(spec).value);
    };
    const at::Tensor critic_head = head(*world.critic);
    const at::Tensor reward_head = head(*world.reward);
    if (comm->rank() == 0) {
      write_safetensors((out / "heads.safetensors").string(),
                        {{"critic", critic_head}, {"reward", reward_head}});
    }
    Ppo ppo(world.models(), settings_of(c, eos), tiny_prompts());
    for (int step = 0; step < kSteps; ++step) {
      const PpoRecord record = ppo.step(step);
      std::lock_guard lock(mutex);
      run.steps.resize(kSteps, Json::array());
      for (const Json& sequence : sequences_of(ppo, comm->rank())) {
        run.steps[step].push_back(sequence);
      }
      if (comm->rank() == 0) {
        run.records.push_back(record);
      }
    }
    comm->barrier();
    const at::Tensor logp = logp_of(*world.actor, run.steps[0]);
    if (comm->rank() == 0) {
      run.final_logp = logp;
    }
    export_model(*world.actor, world.folder, at::kFloat, (out / "actor").string(),
                 IfPresent::kRefuse);
    export_model(*world.critic, world.folder, at::kFloat, (out / "critic").string(),
                 IfPresent::kRefuse);
  });
  const PpoSettings settings = settings_of(c, eos);
  const Json json{
      {"model", folder.string()},
      {"settings",
       {{"rules", c.rules == PpoRules::kStrict ? "strict" : "deepspeed-chat"},
        {"eos", eos},
        {"max_new_tokens", settings.sampling.max_new_tokens},
        {"ppo_epochs", settings.ppo_epochs},
        {"lr", settings.actor.lr},
        {"eps", std::get<AdamSettings>(settings.actor.optimizer.kind).eps},
        {"warmup", settings.actor.schedule.warmup},
        {"weight_decay", std::get<AdamSettings>(settings.actor.optimizer.kind).weight_decay}}},
      {"steps", run.steps}};
  std::ofstream(out / "run.json") << json;
  return run;
}

void expect_same_records(const std::vector<PpoRecord>& ours, const Json& expected) {
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    SCOPED_TRACE(str("step ", i));
    const Json& e = expected[i];
    const PpoRecord& r = ours[i];
    const auto near = [&](const char* name, double value, double bound) {
      EXPECT_NEAR(value, e.at(name).get<double>(), fp32_bound(bound)) << name;
    };
    near("reward", r.reward, 1e-5);
    near("kl", r.kl, 1e-5);
    near("actor_loss", r.actor_loss, 1e-5);
    near("critic_loss", r.critic_loss, 1e-5);
    near("entropy", r.entropy, 1e-5);
    near("explained_variance", r.explained_variance, 1e-4);
    near("clip_fraction", r.clip_fraction, 1e-9);
    near("value_clip_fraction", r.value_clip_fraction, 1e-9);
    near("tokens", static_cast<double>(r.tokens), 0);
    near("actor_grad_norm", r.actor.grad_norm, 1e-4 * (1 + r.actor.grad_norm));
    near("critic_grad_norm", r.critic.grad_norm, 1e-4 * (1 + r.critic.grad_norm));
    near("actor_lr", r.actor.lr, 1e-12);
    near("critic_lr", r.critic.lr, 1e-12);
  }
}

// Key biases have a gradient of zero in theory; Adam turns its rounding noise into steps
// of size lr. They are left out here and covered by what the model says.
at::Tensor without_key_bias(const std::string& name, const at::Tensor& value) {
  if (name.ends_with("k_proj.bias")) {
    return at::zeros_like(value);
  }
  if (name.ends_with("query_key_value.bias")) {  // [heads, 3, head_dim], 4 heads
    at::Tensor copy = value.clone();
    copy.view({4, 3, -1}).select(1, 1).zero_();
    return copy;
  }
  return value;
}

void expect_same_weights(const std::filesystem::path& ours, const std::filesystem::path& expected) {
  const auto weights = read_tensors(ours / "model.safetensors");
  const auto reference = read_tensors(expected);
  EXPECT_EQ(weights.size(), reference.size());
  for (const auto& [name, value] : reference) {
    ASSERT_TRUE(weights.count(name)) << name;
    const at::Tensor a = without_key_bias(name, weights.at(name));
    const at::Tensor b = without_key_bias(name, value);
    EXPECT_LE((a - b).abs().max().item<double>(), fp32_bound(1e-4)) << name;
  }
}

TEST(PpoReference, EveryNumberAndTheFinalWeightsEqualPlainPyTorch) {
  const std::vector<Case> cases{
      {"opt-350m", PpoRules::kStrict, 3},        {"bloom-4-heads", PpoRules::kStrict, 3},
      {"opt-125m", PpoRules::kStrict, 3},        {"opt-350m", PpoRules::kDeepSpeedChat, 1},
      {"opt-350m", PpoRules::kDeepSpeedChat, 2}, {"bloom-4-heads", PpoRules::kDeepSpeedChat, 2}};
  const std::filesystem::path models = golden_folder("models");
  const TempFolder temp;
  const std::filesystem::path root = temp.path();
  std::vector<Replay> runs;
  for (const Case& c : cases) {
    const int64_t eos = frequent_token(models / c.model);
    runs.push_back(run_case(c, eos, models / c.model, root / c.name()));
  }
  run_golden_script("ppo_reference.py", {root.string()}, root / "log.txt");
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].name());
    const auto out = root / cases[i].name();
    int ended = 0;
    for (const Json& sequence : runs[i].steps[0]) {
      ended += sequence.at("ended").get<bool>();
    }
    EXPECT_GT(ended, 0) << "no end token was drawn: the case shows nothing of its rules";
    std::ifstream file(out / "reference.json");
    expect_same_records(runs[i].records, Json::parse(file));
    expect_same_weights(out / "actor", out / "actor.safetensors");
    expect_same_weights(out / "critic", out / "critic.safetensors");
    const at::Tensor logp = read_tensors(out / "logp.safetensors").at("logp");
    EXPECT_LE((runs[i].final_logp - logp).abs().max().item<double>(), fp32_bound(1e-4));
  }
}

}  // namespace
}  // namespace reknit
