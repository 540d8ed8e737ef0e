#include "apps/ppo_inputs.h"

#include "apps/ppo_reward.h"
#include "apps/session.h"
#include "reknit/base/log.h"
#include "reknit/base/random.h"
#include "reknit/checkpoint/checksum.h"

namespace reknit {
namespace {

void check_tokens(const PpoInputs& inputs) {
  if (!inputs.tokenizer) {
    return;
  }
  for (const HfFolder* folder :
       {&inputs.critic, &inputs.reference, inputs.reward ? &*inputs.reward : &inputs.critic}) {
    const auto other = find_tokenizer("", folder->path());
    const auto differs = other ? inputs.tokenizer->first_difference(*other) : std::nullopt;
    if (differs) {
      throw InputError(str(folder->path(), " and ", inputs.actor.path(), " give token ", *differs,
                           " different meanings: \"", other->token(*differs), "\" and \"",
                           inputs.tokenizer->token(*differs), "\""),
                       "actor, critic, reward and reference must share their token ids");
    }
  }
}

void read_prompts(const PpoOptions& options, PpoInputs& inputs) {
  size_t too_long = 0;
  for (const Row& row : read_rows({options.prompts.begin(), options.prompts.end()})) {
    auto tokens = prompt_tokens(row, inputs.tokenizer);
    if (static_cast<int64_t>(tokens.size()) > options.max_prompt_len) {
      ++too_long;
    } else if (tokens.empty()) {
      row.fail("has a prompt without tokens");
    } else {
      inputs.prompts.push_back(std::move(tokens));
      inputs.others.push_back(row.other);
    }
  }
  if (too_long > 0) {
    log_info(too_long, " prompts of more than ", options.max_prompt_len, " tokens were dropped, ",
             inputs.prompts.size(), " are left");
  }
  if (inputs.prompts.empty()) {
    throw InputError(
        str("no prompt has at most ", options.max_prompt_len, " tokens (--max-prompt-seq-len)"),
        "raise --max-prompt-seq-len, or give shorter prompts");
  }
}

}  // namespace

PpoInputs read_ppo_inputs(const PpoOptions& o) {
  const std::string critic = o.critic_dir.empty() ? o.actor_dir : o.critic_dir;
  PpoInputs inputs{HfFolder(o.actor_dir),
                   HfFolder(critic),
                   HfFolder(o.reference_dir.empty() ? o.actor_dir : o.reference_dir),
                   std::nullopt,
                   find_tokenizer(o.tokenizer_dir, o.actor_dir),
                   {},
                   {}};
  check_reward(o, inputs.tokenizer);
  if (reward_name(o).empty()) {
    inputs.reward.emplace(o.reward_dir.empty() ? critic : o.reward_dir);
  }
  check_tokens(inputs);
  if (inputs.reward && !o.allow_random_reward && !has_value_head(*inputs.reward)) {
    throw InputError(str(inputs.reward->path(), " has no value head, so it cannot be the reward"),
                     "pass --reward with a trained reward model, or --allow-random-reward");
  }
  read_prompts(o, inputs);
  return inputs;
}

std::string fingerprint(const PpoInputs& inputs) {
  uint64_t sum = inputs.prompts.size();
  for (size_t i = 0; i < inputs.prompts.size(); ++i) {
    const auto& tokens = inputs.prompts[i];
    sum = mix(sum, checksum({reinterpret_cast<const char*>(tokens.data()),
                             tokens.size() * sizeof(tokens[0])}));
    sum = mix(sum, checksum(inputs.others[i]));
  }
  return str(inputs.prompts.size(), " with checksum ", checksum_text(sum));
}

std::vector<NamedSpec> model_specs(const PpoInputs& inputs) {
  std::vector<NamedSpec> specs = {{"actor", model_spec(inputs.actor, false)},
                                  {"critic", model_spec(inputs.critic, true)},
                                  {"reference", model_spec(inputs.reference, false)}};
  if (inputs.reward) {
    specs.push_back({"reward", model_spec(*inputs.reward, true)});
  }
  return specs;
}

}  // namespace reknit
