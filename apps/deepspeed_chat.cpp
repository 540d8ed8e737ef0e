#include "apps/deepspeed_chat.h"

namespace reknit {
namespace {

using enum FlagKind;
using enum FlagFate;

constexpr std::string_view kNoLora = "LoRA is not built; train the whole model";
constexpr std::string_view kNoDropout = "training has no dropout";
constexpr std::string_view kStage3 =
    "parameters and optimizer states live on the device; use --actor-zero-stage 3 and "
    "--critic-zero-stage 3 to shard them";
constexpr std::string_view kFrozen =
    "frozen models are sharded like the actor (reference) and the critic (reward)";
constexpr std::string_view kSamples = "use --save-samples N, which writes samples.jsonl";

// clang-format off
constexpr ForeignFlag kStep3[] = {
    {"data-path", kList, "Dahoas/rm-static", kAlias, "prompts", "files of JSON lines; ppo.md shows how a data set becomes one"},
    {"data-split", kValue, "2,4,4", kNoMeaning, {}, "the files of --prompts are used whole; split them beforehand"},
    {"data-output-path", kValue, "/tmp/data_files/", kNoMeaning, {}, "nothing is cached: files are read as they are"},
    {"unsupervised-dataset-name", kValue, "", kRefused, {}, "the unsupervised loss is not built"},
    {"unsupervised-dataset-config-name", kValue, "", kRefused, {}, "the unsupervised loss is not built"},
    {"unsup-coef", kValue, "27.8", kSame, {}, "weighs an unsupervised loss, and there is none without its data"},
    {"actor-model-name-or-path", kValue, "", kAlias, "actor"},
    {"critic-model-name-or-path", kValue, "", kAlias, "critic"},
    {"num-padding-at-beginning", kValue, "1", kSame, {}, "no effect: answers are not padded"},
    {"per-device-generation-batch-size", kValue, "16", kAlias, "generation-batch"},
    {"per-device-training-batch-size", kValue, "16", kAlias, "training-batch"},
    {"per-device-train-batch-size", kValue, "16", kAlias, "generation-batch", "its older name"},
    {"per-device-mini-train-batch-size", kValue, "16", kAlias, "training-batch", "its older name"},
    {"generation-batches", kValue, "1", kSame},
    {"generation-batch-numbers", kValue, "1", kAlias, "generation-batches", "its older name"},
    {"ppo-epochs", kValue, "1", kSame},
    {"max-prompt-seq-len", kValue, "256", kSame},
    {"max-answer-seq-len", kValue, "256", kSame},
    {"actor-learning-rate", kValue, "9.65e-6", kSame, {}, "no default here: a rate must be given"},
    {"critic-learning-rate", kValue, "5e-6", kSame, {}, "no default here: a rate must be given"},
    {"actor-weight-decay", kValue, "0", kSame},
    {"critic-weight-decay", kValue, "0", kSame},
    {"num-train-epochs", kValue, "1", kSame},
    {"lr-scheduler-type", kValue, "cosine", kSame, {}, "default here: constant; linear, cosine, constant and constant_with_warmup are built"},
    {"gradient-accumulation-steps", kValue, "1", kSame},
    {"num-warmup-steps", kValue, "100", kSame, {}, "default here: 0"},
    {"output-dir", kValue, "", kAlias, "out"},
    {"seed", kValue, "", kSame, {}, "default here: 1234"},
    {"local-rank", kValue, "-1", kNoMeaning, {}, "the launcher's environment says it"},
    {"enable-hybrid-engine", kFlag, "", kNoMeaning, {}, "generation always runs on the weights that are trained"},
    {"unpin-actor-parameters", kFlag, "", kSame},
    {"release-inference-cache", kFlag, "", kSame},
    {"inference-tp-size", kValue, "1", kRefused, {}, "tensor-parallel generation is not built; ranks generate their own prompts", "1"},
    {"tp-gather-partition-size", kValue, "8", kNoMeaning, {}, "it belongs to tensor-parallel generation"},
    {"offload", kFlag, "", kRefused, {}, kStage3},
    {"dtype", kValue, "fp16", kSame, {}, "default here: bf16 on a GPU, fp32 on the CPU"},
    {"offload-reference-model", kFlag, "", kNoMeaning, {}, kFrozen},
    {"offload-reward-model", kFlag, "", kNoMeaning, {}, kFrozen},
    {"actor-zero-stage", kValue, "0", kSame, {}, "default here: the config's (0 if it says none); without a config 3 on several ranks"},
    {"critic-zero-stage", kValue, "0", kSame, {}, "default here: the config's (0 if it says none); without a config 3 on several ranks"},
    {"actor-gradient-checkpointing", kFlag, "", kSame},
    {"critic-gradient-checkpointing", kFlag, "", kSame},
    {"actor-dropout", kValue, "", kRefused, {}, kNoDropout, "0"},
    {"critic-dropout", kValue, "", kRefused, {}, kNoDropout, "0"},
    {"disable-actor-dropout", kFlag, "", kNoMeaning, {}, kNoDropout},
    {"disable-critic-dropout", kFlag, "", kNoMeaning, {}, kNoDropout},
    {"actor-lora-dim", kValue, "0", kRefused, {}, kNoLora, "0"},
    {"critic-lora-dim", kValue, "0", kRefused, {}, kNoLora, "0"},
    {"actor-lora-module-name", kValue, "decoder.layers.", kNoMeaning, {}, kNoLora},
    {"critic-lora-module-name", kValue, "decoder.layers.", kNoMeaning, {}, kNoLora},
    {"only-optimize-lora", kFlag, "", kRefused, {}, kNoLora},
    {"actor-lora-learning-rate", kValue, "5e-4", kNoMeaning, {}, kNoLora},
    {"critic-lora-learning-rate", kValue, "5e-4", kNoMeaning, {}, kNoLora},
    {"enable-ema", kFlag, "", kSame},
    {"enable-mixed-precision-lora", kFlag, "", kRefused, {}, kNoLora},
    {"compute-fp32-loss", kFlag, "", kNoMeaning, {}, "losses are always computed in fp32"},
    {"enable-tensorboard", kFlag, "", kAlias, "tensorboard"},
    {"tensorboard-path", kValue, "step3_tensorboard", kNoMeaning, {}, "--tensorboard DIR names the folder; without one it is tensorboard in --out"},
    {"add-eot-token", kFlag, "", kRefused, {}, "add the token to the tokenizer and the model before training"},
    {"align-overflow", kFlag, "", kSame},
    {"print-answers", kFlag, "", kNoMeaning, {}, kSamples},
    {"print-answers-interval", kValue, "1", kNoMeaning, {}, kSamples},
    {"enable-test-mode", kFlag, "", kNoMeaning, {}, "--steps ends a run early"},
    {"test-stop-step", kValue, "0", kAlias, "steps"},
    {"deepspeed", kFlag, "", kNoMeaning, {}, "DeepSpeed is not involved"},
    {"deepspeed-config", kValue, "", kAlias, "config"},
};
// clang-format on

}  // namespace

const ForeignFlags& deepspeed_chat_step3() {
  static const ForeignFlags table{"DeepSpeed-Chat", "deepspeed_chat_flags.md", kStep3};
  return table;
}

}  // namespace reknit
