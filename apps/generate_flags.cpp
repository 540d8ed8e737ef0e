#include "apps/generate_flags.h"

#include "apps/generation_config.h"
#include "apps/model_settings.h"
#include "apps/outputs.h"
#include "apps/validators.h"
#include "reknit/base/log.h"

#include <memory>

namespace reknit {
namespace {

const char* kFooter =
    "\nExamples:\n"
    "  reknit generate --model opt-350m --prompt 'The sea is' --max-new-tokens 32\n"
    "  reknit generate --model opt-350m --prompts prompts.jsonl --max-new-tokens 64 \\\n"
    "      --temperature 0.8 --top-p 0.95 --batch 16 --out answers.jsonl\n"
    "\nOne prompt is streamed to the screen; files give one JSON line a prompt.";

void add_flags(CLI::App& app, GenerateOptions& o) {
  const std::string group = "Generation";
  app.add_option("--model", o.model_dir, "A Hugging Face folder, or a name in the local cache")
      ->required()
      ->type_name("DIR")
      ->group(group);
  app.add_option("--tokenizer", o.tokenizer_dir, "Default: the model's folder")
      ->type_name("DIR")
      ->group(group);
  auto* prompt =
      app.add_option("--prompt", o.prompt, "One prompt")->type_name("TEXT")->group(group);
  app.add_option("--prompts", o.prompts, "JSON lines with \"prompt\", \"messages\" or \"tokens\"")
      ->type_name("FILE")
      ->excludes(prompt)
      ->group(group);
  app.add_option("--max-new-tokens", o.max_new_tokens, "Tokens an answer may have")
      ->required()
      ->check(at_least(1))
      ->type_name("N")
      ->group(group);
  app.add_option("--min-new-tokens", o.sampling.min_new_tokens, "Tokens before an end is allowed")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--temperature", o.sampling.temperature, "0 is greedy")
      ->check(not_negative())
      ->type_name("X")
      ->capture_default_str()
      ->group(group);
  app.add_option("--top-k", o.sampling.top_k, "0 is off")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--top-p", o.sampling.top_p, "1 is off")
      ->check(number_within(0, 1))
      ->type_name("X")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--chat", o.chat, "Puts prompts through the model's chat template")->group(group);
  app.add_option("--out", o.out, "JSON lines (default: standard output)")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--zero-stage", o.settings.zero_stage, "3 shards the weights over ranks")
      ->check(one_of({"0", "1", "2", "3"}))
      ->type_name("S")
      ->group("Running");
}

void finish(GenerateOptions& o, bool has_prompt, bool has_temperature) {
  if (!has_prompt && o.prompts.empty()) {
    throw UsageError("neither --prompt nor --prompts is given", "pass --prompt TEXT");
  }
  if (o.sampling.min_new_tokens > o.max_new_tokens) {
    throw UsageError(str("--min-new-tokens ", o.sampling.min_new_tokens,
                         " is more than --max-new-tokens ", o.max_new_tokens),
                     "lower --min-new-tokens or raise --max-new-tokens");
  }
  o.model_dir = require_model("--model", o.model_dir);
  o.tokenizer_dir = require_model("--tokenizer", o.tokenizer_dir);
  require_files("--prompts", o.prompts);
  require_out_file("--out", o.out);
  finish_run(o);
  std::vector<std::string> inputs = {o.model_dir, o.tokenizer_dir, o.config_file};
  inputs.insert(inputs.end(), o.prompts.begin(), o.prompts.end());
  keep_inputs_from_file("--out", o.out, inputs);
  keep_inputs_from_file("--trace", o.trace_file, inputs);
  if (const std::string line = unused_sampling(o.model_dir);
      !has_temperature && !line.empty() && o.place.leads()) {
    log_info(line);
  }
  SettingsRequest request;
  request.trains = false;
  resolve_model_settings(o, request, o.settings);
  log_notes(o, {{"", &o.settings}});
}

}  // namespace

Action add_generate(CLI::App& app, std::function<int(const GenerateOptions&)> run) {
  auto options = std::make_shared<GenerateOptions>();
  add_flags(app, *options);
  add_run_flags(app, *options);
  app.footer(kFooter);
  return [&app, options, run = std::move(run)] {
    finish(*options, app.count("--prompt") > 0, app.count("--temperature") > 0);
    return run(*options);
  };
}

}  // namespace reknit
