// What the flags of reknit pretrain mean together: checks, and settings of the config.
#include "apps/model_settings.h"
#include "apps/outputs.h"
#include "apps/pretrain_flags.h"
#include "reknit/base/error.h"

#include <cmath>
#include <filesystem>

namespace reknit {
namespace {

using Given = std::function<bool(const char*)>;

/// Throws if more than one of `flags` is given; true if one is.
bool at_most_one(const Given& given, std::initializer_list<const char*> flags) {
  const char* found = nullptr;
  for (const char* flag : flags) {
    if (given(flag)) {
      if (found != nullptr) {
        throw UsageError(str(found, " and ", flag, " are both given"), "keep one of them");
      }
      found = flag;
    }
  }
  return found != nullptr;
}

void check_model(PretrainOptions& o, const Given& given) {
  for (const char* flag : {"--num-layers", "--hidden-size", "--num-attention-heads"}) {
    if (o.model.empty() && !given(flag)) {
      throw UsageError(str("there is no model: neither --model nor ", flag, " is given"),
                       "pass --model DIR or config.json, or --num-layers, --hidden-size and "
                       "--num-attention-heads");
    }
  }
  for (const char* flag : {"--num-layers", "--hidden-size", "--num-attention-heads",
                           "--ffn-hidden-size", "--max-position-embeddings", "--vocab-size",
                           "--vocab-file", "--make-vocab-size-divisible-by", "--init-method-std",
                           "--layernorm-epsilon", "--untie-embeddings-and-output-weights"}) {
    if (!o.model.empty() && given(flag)) {
      throw UsageError(str(flag, " contradicts --model ", o.model, ", which says the shape"),
                       "leave one of them out");
    }
  }
  std::error_code none;
  if (!std::filesystem::is_regular_file(o.model, none)) {
    o.model = require_model("--model", o.model);
  }
  o.tokenizer_dir = require_model("--tokenizer", o.tokenizer_dir);
  if (!o.shape.vocab_file.empty()) {
    require_file("--vocab-file", o.shape.vocab_file);
  }
}

void check_data(const PretrainOptions& o, const Given& given) {
  if (o.data.empty() == o.train_data.empty()) {
    throw UsageError(o.data.empty() ? "there is no data: neither --data nor --train-data-path"
                                    : "--data and --train-data-path are both given",
                     "pass --data PREFIX; reknit data build makes it from text");
  }
  if (!o.data.empty() && (given("--valid-data-path") || given("--test-data-path"))) {
    throw UsageError("--valid-data-path or --test-data-path stand beside --data, which is split",
                     "pass --train-data-path in place of --data");
  }
  if (o.seq_length == 0) {
    throw UsageError("there is no sequence length", "pass --seq-length L");
  }
}

void check_length(PretrainOptions& o, const Given& given) {
  if (!at_most_one(given, {"--steps", "--train-samples", "--train-tokens", "--num-train-epochs"})) {
    throw UsageError("nothing says how long the run is",
                     "pass --steps N, --train-samples N, --train-tokens N or --num-train-epochs N");
  }
  o.epochs_given = given("--num-train-epochs");
  at_most_one(given, {"--lr-decay-iters", "--lr-decay-samples", "--lr-decay-tokens"});
  at_most_one(given, {"--lr-warmup-fraction", "--lr-warmup-iters", "--lr-warmup-samples",
                      "--lr-warmup-tokens"});
  at_most_one(given, {"--override-opt-param-scheduler", "--use-checkpoint-opt-param-scheduler"});
  at_most_one(given, {"--decoupled-lr", "--use-checkpoint-opt-param-scheduler"});
  at_most_one(given, {"--distributed-timeout-minutes", "--timeout"});
  if (o.deepspeed_chat) {
    throw UsageError("--compat deepspeed-chat has no meaning for pretraining", "leave it out");
  }
  if (!o.rampup.empty() && !o.global_batch) {
    throw UsageError("--rampup-batch-size needs the batch that it grows to",
                     "pass --global-batch-size");
  }
  if (o.decay.style.empty()) {
    for (const char* flag : {"--min-lr", "--lr-decay-iters", "--lr-decay-samples",
                             "--lr-decay-tokens", "--lr-warmup-fraction", "--lr-warmup-iters",
                             "--lr-warmup-samples", "--lr-warmup-tokens"}) {
      o.decay.style = given(flag) ? "linear" : o.decay.style;
    }
  }
}

// Both ends of the weight decay, or neither. With a growing one or a second rate, a constant
// rate is one of Megatron's schedules as well.
void check_groups(PretrainOptions& o) {
  DecayOptions& d = o.decay;
  const auto show = [](const std::optional<double>& value) {
    return value ? str(*value) : std::string("not given");
  };
  const std::string ends = str("--start-weight-decay is ", show(d.start_weight_decay),
                               " and --end-weight-decay ", show(d.end_weight_decay));
  if (!d.ramps() && (d.start_weight_decay || d.end_weight_decay)) {
    throw UsageError(str(ends, ", but --weight-decay-incr-style is ",
                         d.ramp_style.empty() ? "not given" : d.ramp_style),
                     "pass --weight-decay-incr-style linear or cosine, or --weight-decay alone");
  }
  if (d.ramps() && !(d.start_weight_decay && d.end_weight_decay)) {
    throw UsageError(str("--weight-decay-incr-style is ", d.ramp_style, ", but ", ends),
                     "pass both ends, or --weight-decay alone");
  }
  if (d.ramps() && *d.start_weight_decay > *d.end_weight_decay) {
    throw UsageError(str(ends, ", which is less"), "a weight decay grows or stays");
  }
  if ((d.ramps() || d.decoupled_lr) && d.style.empty()) {
    d.style = "constant";
  }
}

// --load DIR is --resume auto that looks in DIR.
void check_resume(PretrainOptions& o, const Given& given) {
  if (!given("--load")) {
    return;
  }
  if (!o.resume.empty()) {
    throw UsageError(str("--load ", o.resume_from, " and --resume ", o.resume, " are both given"),
                     "keep one of them");
  }
  o.resume = "auto";
  std::error_code none;
  const bool same = std::filesystem::weakly_canonical(o.resume_from, none) ==
                    std::filesystem::weakly_canonical(o.out, none);
  if (!o.out.empty() && same) {
    o.resume_from.clear();
  }
}

std::vector<std::string> inputs_of(const PretrainOptions& o) {
  std::vector<std::string> inputs = {o.model, o.tokenizer_dir, o.shape.vocab_file, o.resume,
                                     o.resume_from};
  for (const auto* words : {&o.data, &o.train_data, &o.valid_data, &o.test_data}) {
    for (const std::string& word : *words) {
      inputs.push_back(word + ".idx");
    }
  }
  return inputs;
}

void choose_dtype(PretrainOptions& o) {
  for (const auto& [given, dtype] : {std::pair{o.fp16, "fp16"}, {o.bf16, "bf16"}}) {
    if (given && !o.dtype.empty() && o.dtype != dtype) {
      throw UsageError(str("--", dtype, " contradicts ", o.dtype), "give one of the two");
    }
    o.dtype = given ? dtype : o.dtype;
  }
}

void check_recomputation(const PretrainOptions& o, const Given& given) {
  at_most_one(given, {"--gradient-checkpointing", "--checkpoint-every", "--recompute-granularity"});
  if (o.recompute_granularity != "full" &&
      (given("--recompute-method") || given("--recompute-num-layers"))) {
    throw UsageError("--recompute-method and --recompute-num-layers have no meaning alone",
                     "pass --recompute-granularity full with them");
  }
}

int64_t power_of(double scale) {
  const double power = std::log2(scale);
  if (!(scale >= 1) || power != std::floor(power)) {
    throw UsageError(str("--initial-loss-scale ", scale, " is not a power of two"),
                     "pass one, such as 65536");
  }
  return static_cast<int64_t>(power);
}

SettingsRequest request_for(const PretrainOptions& o) {
  SettingsRequest request;
  const int64_t ranks = o.place.ranks;
  request.default_batch = o.global_batch ? (*o.global_batch + ranks - 1) / ranks : 0;
  const auto add = [&](const char* key, const nlohmann::json& value, const char* flag) {
    request.flags.push_back({key, value, flag});
  };
  if (o.batch) {
    add("train_micro_batch_size_per_gpu", *o.batch, "--batch");
  }
  if (o.clip_grad) {
    add("gradient_clipping", *o.clip_grad, "--clip-grad");
  }
  if (o.decay.ramps()) {
    add("optimizer.params.weight_decay", *o.decay.start_weight_decay, "--start-weight-decay");
  }
  if (o.adam_beta1 || o.adam_beta2) {
    add("optimizer.params.betas", {o.adam_beta1.value_or(0.9), o.adam_beta2.value_or(0.999)},
        o.adam_beta1 ? "--adam-beta1" : "--adam-beta2");
  }
  if (o.adam_eps) {
    add("optimizer.params.eps", *o.adam_eps, "--adam-eps");
  }
  if (o.loss_scale) {
    add("fp16.loss_scale", *o.loss_scale, "--loss-scale");
  }
  if (o.initial_loss_scale) {
    add("fp16.initial_scale_power", power_of(*o.initial_loss_scale), "--initial-loss-scale");
  }
  if (o.min_loss_scale) {
    add("fp16.min_loss_scale", *o.min_loss_scale, "--min-loss-scale");
  }
  if (o.loss_scale_window) {
    add("fp16.loss_scale_window", *o.loss_scale_window, "--loss-scale-window");
  }
  if (o.hysteresis) {
    add("fp16.hysteresis", *o.hysteresis, "--hysteresis");
  }
  request.defaults.push_back({"optimizer.params.weight_decay", 0.01, "default"});
  return request;
}

// The micro-batch and the ranks need not divide --global-batch-size, so it is not a part of
// the config's triple; it must still say the same.
void check_batch(const PretrainOptions& o) {
  const BatchRequest& batch = o.settings.reading.config.batch;
  if (o.global_batch && batch.global && *batch.global != *o.global_batch) {
    throw UsageError(
        str("--global-batch-size ", *o.global_batch,
            " contradicts train_batch_size = ", *batch.global, " of ", batch.global_from),
        "give it in one place");
  }
  if (!o.rampup.empty()) {
    const int64_t grows = *o.global_batch - o.rampup[0];
    if (grows < 0 || grows % o.rampup[1] != 0) {
      throw UsageError(str("--rampup-batch-size from ", o.rampup[0], " by ", o.rampup[1],
                           " never reaches --global-batch-size ", *o.global_batch),
                       "the difference must be a multiple of the increment");
    }
  }
  if (!o.settings.reading.config.scheduler.type.empty() && !o.decay.style.empty()) {
    throw UsageError(str("the flags of the schedule contradict scheduler.type = ",
                         o.settings.reading.config.scheduler.type, " of the config"),
                     "give the schedule in one place");
  }
}

}  // namespace

void finish_pretrain(PretrainOptions& o, const Given& given) {
  check_model(o, given);
  check_data(o, given);
  check_length(o, given);
  check_groups(o);
  check_recomputation(o, given);
  check_resume(o, given);
  choose_dtype(o);
  keep_inputs_from_run(o, inputs_of(o));
  finish_train(o);
  resolve_model_settings(o, request_for(o), o.settings);
  log_notes(o, {{"", &o.settings}});
  check_batch(o);
  o.wall_clock_breakdown |= o.settings.reading.config.wall_clock_breakdown;
}

}  // namespace reknit
