#include "apps/score_flags.h"

#include "apps/model_settings.h"
#include "apps/outputs.h"
#include "apps/validators.h"

#include <memory>

namespace reknit {
namespace {

const char* kFooter =
    "\nExamples:\n"
    "  reknit score --model opt-350m --input texts.jsonl --out scores.jsonl\n"
    "  reknit score --model opt-350m-reward --input pairs.jsonl     values of the value head\n";

void finish(ScoreOptions& o) {
  o.model_dir = require_model("--model", o.model_dir);
  o.tokenizer_dir = require_model("--tokenizer", o.tokenizer_dir);
  require_files("--input", o.inputs);
  require_out_file("--out", o.out);
  finish_run(o);
  std::vector<std::string> inputs = {o.model_dir, o.tokenizer_dir, o.config_file};
  inputs.insert(inputs.end(), o.inputs.begin(), o.inputs.end());
  keep_inputs_from_file("--out", o.out, inputs);
  keep_inputs_from_file("--trace", o.trace_file, inputs);
  SettingsRequest request;
  request.trains = false;
  resolve_model_settings(o, request, o.settings);
  log_notes(o, {{"", &o.settings}});
}

}  // namespace

Action add_score(CLI::App& app, std::function<int(const ScoreOptions&)> run) {
  auto o = std::make_shared<ScoreOptions>();
  const std::string group = "Scoring";
  app.add_option("--model", o->model_dir, "A Hugging Face folder, or a name in the local cache")
      ->required()
      ->type_name("DIR")
      ->group(group);
  app.add_option("--tokenizer", o->tokenizer_dir, "Default: the model's folder")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--input", o->inputs, "JSON lines with \"text\", \"prompt\" or \"tokens\"")
      ->required()
      ->type_name("FILE")
      ->group(group);
  app.add_option("--out", o->out, "JSON lines (default: standard output)")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--zero-stage", o->settings.zero_stage, "3 shards the weights over ranks")
      ->check(one_of({"0", "1", "2", "3"}))
      ->type_name("S")
      ->group("Running");
  add_run_flags(app, *o);
  app.footer(kFooter);
  return [o, run = std::move(run)] {
    finish(*o);
    return run(*o);
  };
}

}  // namespace reknit
