#include "apps/export_flags.h"

#include "apps/outputs.h"
#include "apps/validators.h"

#include <memory>

namespace reknit {
namespace {

const char* kFooter =
    "\nExamples:\n"
    "  reknit export run --out model                    the newest whole checkpoint of a run\n"
    "  reknit export run/step-000200 --out model --dtype bf16\n"
    "  reknit export ppo-run --model actor_ema --out actor\n"
    "  reknit export deepspeed-out --model-config opt/config.json --out model\n"
    "\nThe checkpoint may have been saved under any ZeRO stage and any number of ranks. Its\n"
    "checksums are compared first; the folder appears whole or not at all.";

}  // namespace

Action add_export(CLI::App& app, std::function<int(const ExportOptions&)> run) {
  auto o = std::make_shared<ExportOptions>();
  auto dtype = std::make_shared<std::string>();
  app.add_option("CHECKPOINT", o->checkpoint,
                 "A step-NNNNNN folder, the run's folder, or a checkpoint of DeepSpeed")
      ->required();
  app.add_option("--out", o->out, "The Hugging Face folder to write")->required()->type_name("DIR");
  app.add_option("--model", o->model,
                 "actor, critic, actor_ema, ... (default: the actor, or the only one)")
      ->type_name("NAME");
  app.add_option("--model-config", o->model_config,
                 "Of a DeepSpeed checkpoint: the model's config.json or folder")
      ->type_name("FILE");
  app.add_option("--dtype", *dtype, "fp32, bf16, fp16 (default: the run's)")
      ->check(one_of({"fp32", "bf16", "fp16"}))
      ->type_name("T");
  app.add_flag("--overwrite", o->overwrite, "Replaces a folder that is there");
  app.footer(kFooter);
  return [o, dtype, run = std::move(run)] {
    if (!dtype->empty()) {
      o->dtype = precision_named(*dtype);
    }
    if (o->overwrite) {
      require_replaceable_model(o->out);
    }
    return run(*o);
  };
}

}  // namespace reknit
