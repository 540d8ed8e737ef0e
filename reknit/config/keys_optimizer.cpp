// The config's sections on optimizer and schedule.
#include "reknit/config/deepspeed_keys.h"

namespace reknit {
namespace {

using enum KeyKind;
constexpr double kAny = std::numeric_limits<double>::infinity();

#define TARGET(member) [](DeepSpeedConfig& c) -> KeyTarget { return &c.member; }
using Target = KeyTarget (*)(DeepSpeedConfig&);

/// An implemented key.
KeySpec key(std::string_view path, KeyKind kind, std::string_view standard,
            std::string_view sentence, Target target, double min = 0, double max = kAny) {
  return {path, kind, standard, sentence, KeyFate::kImplemented, {}, target, {}, min, max};
}

KeySpec choice(std::string_view path, std::string_view standard, std::string_view sentence,
               Target target, std::string_view choices) {
  return {path, kChoice, standard, sentence, KeyFate::kImplemented, {}, target, choices};
}

KeySpec idle(std::string_view path, KeyKind kind, std::string_view standard,
             std::string_view sentence, std::string_view reason) {
  return {path, kind, standard, sentence, KeyFate::kNoMeaning, reason};
}

KeySpec refused(std::string_view path, KeyKind kind, std::string_view standard,
                std::string_view sentence, std::string_view reason) {
  return {path, kind, standard, sentence, KeyFate::kRefused, reason};
}

std::vector<KeySpec> optimizer_keys() {
  return {
      {"optimizer", kSection, "null", "The rule that updates parameters."},
      key("optimizer.type", kText, "null", "Adam, AdamW, Adagrad, Lamb, Lion, SGD or Muon.",
          TARGET(optimizer.type)),
      idle("optimizer.legacy_fusion", kBool, "false", "The old fused form.",
           "the update is one fused kernel"),
      {"optimizer.params", kSection, "null", "Its constants."},
      key("optimizer.params.lr", kNumber, "null",
          "Learning rate (DeepSpeed's 1e-3 is not assumed).", TARGET(optimizer.lr)),
      key("optimizer.params.betas", kNumberList, "[0.9, 0.999]",
          "Decay of the means of Adam, Lamb, Lion (0.9, 0.99) and Muon (0.9, 0.95).",
          TARGET(optimizer.betas), 0, 1),
      key("optimizer.params.eps", kNumber, "1e-8",
          "Keeps the denominator from zero (Adagrad and Muon: 1e-10).", TARGET(optimizer.eps)),
      key("optimizer.params.weight_decay", kNumber, "0", "Weight decay, not of norms and biases.",
          TARGET(optimizer.weight_decay)),
      key("optimizer.params.decay_all", kBool, "false",
          "Norms and biases decay as well (a key of Reknit's: DeepSpeed has none).",
          TARGET(optimizer.decay_all)),
      key("optimizer.params.bias_correction", kBool, "true", "Corrects young moments.",
          TARGET(optimizer.bias_correction)),
      key("optimizer.params.adam_w_mode", kBool, "true",
          "Decoupled decay (also for Adam unless this is false).", TARGET(optimizer.adam_w_mode)),
      key("optimizer.params.momentum", kNumber, "null",
          "Momentum of SGD (default 0) and Muon (0.95).", TARGET(optimizer.momentum), 0, 1),
      key("optimizer.params.dampening", kNumber, "0", "What SGD's momentum takes off a gradient.",
          TARGET(optimizer.dampening), 0, 1),
      key("optimizer.params.nesterov", kBool, "null",
          "Steps one gradient ahead (default: SGD false, Muon true).", TARGET(optimizer.nesterov)),
      key("optimizer.params.lr_decay", kNumber, "0", "Adagrad's fall of the rate an update.",
          TARGET(optimizer.lr_decay)),
      key("optimizer.params.initial_accumulator_value", kNumber, "0", "Where Adagrad's sums start.",
          TARGET(optimizer.initial_accumulator)),
      key("optimizer.params.min_coeff", kNumber, "0.01", "Least ratio of lengths in Lamb.",
          TARGET(optimizer.min_coeff)),
      key("optimizer.params.max_coeff", kNumber, "10", "Largest ratio of lengths in Lamb.",
          TARGET(optimizer.max_coeff)),
      key("optimizer.params.muon_lr", kNumber, "null", "Rate of Muon's matrices (default: lr).",
          TARGET(optimizer.muon_lr)),
      key("optimizer.params.adam_lr", kNumber, "null",
          "Rate of the parameters that Muon leaves to AdamW (default: lr).",
          TARGET(optimizer.adam_lr)),
      key("optimizer.params.ns_steps", kInteger, "5", "Newton-Schulz steps of Muon.",
          TARGET(optimizer.ns_steps), 1, 100),
      choice("optimizer.params.adjust_lr_fn", "\"original\"",
             "How the length of Muon's steps follows the shape.", TARGET(optimizer.adjust_lr_fn),
             "original|match_rms_adamw"),
      {"optimizer.params.ns_method", kChoice, "\"gram\"", "How Muon iterates.", KeyFate::kNoMeaning,
       "the iteration is the standard one in bf16; the other form is equal to it but for rounding",
       nullptr, "gram|standard"},
      idle("optimizer.params.torch_adam", kBool, "false", "PyTorch's own Adam.",
           "the update is one fused kernel, equal to PyTorch's"),
      idle("optimizer.params.fused", kBool, "null", "PyTorch's fused form.",
           "the update is one fused kernel"),
      idle("optimizer.params.foreach", kBool, "null", "PyTorch's form for many tensors.",
           "the update is one fused kernel"),
      refused("optimizer.params.fp32_optimizer_states", kBool, "true", "Moments in fp32.",
              "moments are fp32; leave it on"),
      refused("optimizer.params.amsgrad", kBool, "false", "Keeps the largest second moment.",
              "it is not built; leave it off"),
      refused("optimizer.params.maximize", kBool, "false", "Climbs instead of descending.",
              "losses are minimised; leave it off"),
      refused("optimizer.params.eps_inside_sqrt", kBool, "false", "Lamb's eps under the root.",
              "eps is added to the root; leave it off"),
      refused("optimizer.params.max_grad_norm", kNumber, "0", "Another name for clipping.",
              "write gradient_clipping at the top level"),
  };
}

std::vector<KeySpec> warmup_keys() {
  return {
      {"scheduler", kSection, "null", "The learning rate over steps; without it, constant."},
      choice("scheduler.type", "null", "Which schedule.", TARGET(scheduler.type),
             "WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest"),
      {"scheduler.params", kSection, "null", "Its constants."},
      refused("scheduler.params.last_batch_iteration", kInteger, "-1", "Step to start after.",
              "a schedule starts at its first step, or where a checkpoint left it"),
      key("scheduler.params.warmup_min_lr", kNumber, "0", "Rate at the start.",
          TARGET(scheduler.warmup_min_lr)),
      key("scheduler.params.warmup_max_lr", kNumber, "null",
          "Rate after the warm-up (default: the optimizer's).", TARGET(scheduler.warmup_max_lr)),
      key("scheduler.params.warmup_num_steps", kInteger, "1000", "Steps of the warm-up.",
          TARGET(scheduler.warmup_num_steps)),
      choice("scheduler.params.warmup_type", "\"log\"", "Shape of the warm-up.",
             TARGET(scheduler.warmup_type), "log|linear"),
      key("scheduler.params.total_num_steps", kInteger, "null", "Steps of the whole schedule.",
          TARGET(scheduler.total_num_steps), 1),
      key("scheduler.params.warmup_min_ratio", kNumber, "0", "Part of the rate at the start.",
          TARGET(scheduler.warmup_min_ratio), 0, 1),
      key("scheduler.params.cos_min_ratio", kNumber, "1e-4", "Part of the rate at the end.",
          TARGET(scheduler.cos_min_ratio), 0, 1),
  };
}

std::vector<KeySpec> cycle_keys() {
  return {
      key("scheduler.params.cycle_min_lr", kNumber, "null", "Lowest rate of the cycle.",
          TARGET(scheduler.cycle_min_lr)),
      key("scheduler.params.cycle_max_lr", kNumber, "null", "Highest rate of the cycle.",
          TARGET(scheduler.cycle_max_lr)),
      key("scheduler.params.decay_lr_rate", kNumber, "0", "Decay after the cycle.",
          TARGET(scheduler.decay_lr_rate)),
      key("scheduler.params.cycle_first_step_size", kInteger, "2000", "Steps up.",
          TARGET(scheduler.cycle_first_step_size), 1),
      key("scheduler.params.cycle_second_step_size", kInteger, "null",
          "Steps down (default: as up).", TARGET(scheduler.cycle_second_step_size), 1),
      key("scheduler.params.cycle_first_stair_count", kInteger, "0", "Stairs up.",
          TARGET(scheduler.cycle_first_stair_count)),
      key("scheduler.params.cycle_second_stair_count", kInteger, "null",
          "Stairs down (default: as up).", TARGET(scheduler.cycle_second_stair_count)),
      key("scheduler.params.decay_step_size", kInteger, "0", "Steps between decays; 0: none.",
          TARGET(scheduler.decay_step_size)),
      key("scheduler.params.cycle_momentum", kBool, "true", "Cycles the first beta as well.",
          TARGET(scheduler.cycle_momentum)),
      key("scheduler.params.cycle_min_mom", kNumber, "0.8", "Its lowest value.",
          TARGET(scheduler.cycle_min_mom), 0, 1),
      key("scheduler.params.cycle_max_mom", kNumber, "0.9", "Its highest value.",
          TARGET(scheduler.cycle_max_mom), 0, 1),
      key("scheduler.params.decay_mom_rate", kNumber, "0", "Its growth after the cycle.",
          TARGET(scheduler.decay_mom_rate)),
      key("scheduler.params.lr_range_test_min_lr", kNumber, "1e-3", "First rate of the test.",
          TARGET(scheduler.lr_range_test_min_lr)),
      key("scheduler.params.lr_range_test_step_size", kInteger, "2000", "Steps an interval.",
          TARGET(scheduler.lr_range_test_step_size), 1),
      key("scheduler.params.lr_range_test_step_rate", kNumber, "1.0", "Growth an interval.",
          TARGET(scheduler.lr_range_test_step_rate)),
      key("scheduler.params.lr_range_test_staircase", kBool, "false", "Grows in stairs.",
          TARGET(scheduler.lr_range_test_staircase)),
  };
}

}  // namespace

std::vector<KeySpec> optimizer_and_schedule_keys() {
  std::vector<KeySpec> keys;
  for (const auto& part : {optimizer_keys(), warmup_keys(), cycle_keys()}) {
    keys.insert(keys.end(), part.begin(), part.end());
  }
  return keys;
}

}  // namespace reknit
