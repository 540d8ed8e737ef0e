#include "apps/init_flags.h"

#include "apps/outputs.h"
#include "apps/validators.h"

#include <memory>

namespace reknit {

Action add_init(CLI::App& app, std::function<int(const InitOptions&)> run) {
  auto o = std::make_shared<InitOptions>();
  auto dtype = std::make_shared<std::string>("fp32");
  app.add_option("--model", o->config_json,
                 "A model's config.json, the folder that holds it, or a\nname in the local cache")
      ->required()
      ->type_name("DIR|FILE");
  app.add_option("--out", o->out, "The Hugging Face folder to write")->required()->type_name("DIR");
  add_seed_flag(app, o->seed);
  app.add_option("--dtype", *dtype, "fp32, bf16, fp16")
      ->check(one_of({"fp32", "bf16", "fp16"}))
      ->type_name("T")
      ->capture_default_str();
  app.add_flag("--value-head", o->value_head, "A critic or reward model: one value a token");
  app.add_flag("--overwrite", o->overwrite, "Replaces a folder that is there");
  app.footer(
      "\nExamples:\n"
      "  reknit init --model opt-tiny/config.json --seed 1 --out opt-tiny-random\n"
      "  reknit init --model opt-tiny --value-head --out critic --dtype bf16\n"
      "\nA weight depends on the seed, its tensor's name and its place alone. Tokenizer files "
      "beside\n"
      "config.json are copied.");
  return [o, dtype, run = std::move(run)] {
    o->dtype = precision_named(*dtype);
    o->config_json = require_model_config("--model", o->config_json);
    if (o->overwrite) {
      require_replaceable_model(o->out);
    }
    return run(*o);
  };
}

}  // namespace reknit
