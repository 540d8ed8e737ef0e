#include "apps/megatron.h"

namespace reknit {
namespace {

using enum FlagKind;
using enum FlagFate;

constexpr std::string_view kDataParallel =
    "all ranks are data-parallel; ZeRO stage 3 or MiCS shards the model";
constexpr std::string_view kModelFile =
    "the shape flags describe GPT-2; for another architecture pass --model config.json";
constexpr std::string_view kKernels = "there is one path; its kernels are chosen here";
constexpr std::string_view kWhole =
    "a run goes on with all that it had; to begin anew from weights alone pass --model OUT/model";
constexpr std::string_view kBuckets = "slots are sized from the model; there are no buckets";
constexpr std::string_view kLogs = "metrics.jsonl in --out has every number, a line a step";
constexpr std::string_view kTokenized = "the data holds token ids already";
constexpr std::string_view kNoExperts = "experts are not built";

// clang-format off
constexpr ForeignFlag kPretrain[] = {
    {"num-layers", kValue, "", kSame},
    {"hidden-size", kValue, "", kSame},
    {"ffn-hidden-size", kValue, "4 x hidden", kSame},
    {"num-attention-heads", kValue, "", kSame},
    {"num-key-value-heads", kValue, "", kRefused, {}, kModelFile},
    {"kv-channels", kValue, "", kRefused, {}, "a head has hidden size / heads channels"},
    {"seq-length", kValue, "", kSame},
    {"max-position-embeddings", kValue, "", kSame, {}, "default here: the sequence length"},
    {"make-vocab-size-divisible-by", kValue, "128", kSame},
    {"vocab-size", kValue, "", kSame},
    {"position-embedding-type", kValue, "learned_absolute", kRefused, {}, kModelFile, "learned_absolute"},
    {"use-rotary-position-embeddings", kFlag, "", kRefused, {}, kModelFile},
    {"rotary-percent", kValue, "1.0", kNoMeaning, {}, "it belongs to rotary positions"},
    {"normalization", kValue, "layernorm", kRefused, {}, kModelFile, "layernorm"},
    {"layernorm-epsilon", kValue, "1e-5", kSame},
    {"swiglu", kFlag, "", kRefused, {}, kModelFile},
    {"squared-relu", kFlag, "", kRefused, {}, kModelFile},
    {"disable-bias-linear", kFlag, "", kRefused, {}, kModelFile},
    {"untie-embeddings-and-output-weights", kFlag, "", kSame},
    {"init-method-std", kValue, "0.02", kSame},
    {"hidden-dropout", kValue, "0.1", kSame, {}, "with --model the default is its config's"},
    {"attention-dropout", kValue, "0.1", kSame, {}, "with --model the default is its config's"},
    {"no-masked-softmax-fusion", kFlag, "", kNoMeaning, {}, kKernels},
    {"no-bias-gelu-fusion", kFlag, "", kNoMeaning, {}, kKernels},
    {"no-bias-dropout-fusion", kFlag, "", kNoMeaning, {}, kKernels},
    {"no-gradient-accumulation-fusion", kFlag, "", kNoMeaning, {}, kKernels},
    {"no-query-key-layer-scaling", kFlag, "", kNoMeaning, {}, kKernels},
    {"attention-softmax-in-fp32", kFlag, "", kNoMeaning, {}, "it always is"},
    {"use-flash-attn", kFlag, "", kNoMeaning, {}, kKernels},
    {"micro-batch-size", kValue, "", kAlias, "batch"},
    {"global-batch-size", kValue, "", kSame},
    {"rampup-batch-size", kList, "", kSame, {}, "start, increment, samples"},
    {"train-iters", kValue, "", kAlias, "steps"},
    {"train-samples", kValue, "", kSame},
    {"train-tokens", kValue, "", kSame},
    {"lr", kValue, "", kSame},
    {"min-lr", kValue, "0", kSame},
    {"lr-decay-style", kValue, "linear", kSame, {}, "default here: constant, and linear if another flag of the schedule is given"},
    {"lr-decay-iters", kValue, "train-iters", kSame},
    {"lr-decay-samples", kValue, "train-samples", kSame},
    {"lr-decay-tokens", kValue, "", kSame, {}, "divided by the sequence length it is lr-decay-samples"},
    {"lr-warmup-fraction", kValue, "", kSame},
    {"lr-warmup-iters", kValue, "0", kSame},
    {"lr-warmup-samples", kValue, "0", kSame},
    {"lr-warmup-tokens", kValue, "", kSame, {}, "divided by the sequence length it is lr-warmup-samples"},
    {"weight-decay", kValue, "0.01", kSame},
    {"start-weight-decay", kValue, "", kRefused, {}, "the weight decay is constant: --weight-decay"},
    {"end-weight-decay", kValue, "", kRefused, {}, "the weight decay is constant: --weight-decay"},
    {"weight-decay-incr-style", kValue, "constant", kRefused, {}, "the weight decay is constant: --weight-decay", "constant"},
    {"clip-grad", kValue, "1.0", kSame},
    {"adam-beta1", kValue, "0.9", kSame},
    {"adam-beta2", kValue, "0.999", kSame},
    {"adam-eps", kValue, "1e-8", kSame},
    {"optimizer", kValue, "adam", kRefused, {}, "choose it by optimizer.type in --config, or --set optimizer.type=...", "adam"},
    {"seed", kValue, "1234", kSame},
    {"fp16", kFlag, "", kSame},
    {"bf16", kFlag, "", kSame},
    {"loss-scale", kValue, "", kSame},
    {"initial-loss-scale", kValue, "2^32", kSame, {}, "default here: 2^16; a power of two"},
    {"min-loss-scale", kValue, "1", kSame},
    {"loss-scale-window", kValue, "1000", kSame},
    {"hysteresis", kValue, "2", kSame},
    {"eval-iters", kValue, "100", kSame, {}, "at most one pass over the validation part"},
    {"eval-interval", kValue, "1000", kSame},
    {"exit-interval", kValue, "", kSame},
    {"exit-duration-in-mins", kValue, "", kAlias, "time-limit"},
    {"exit-signal-handler", kFlag, "", kNoMeaning, {}, "SIGTERM, SIGUSR1 and Ctrl-C always end a run in order"},
    {"log-interval", kValue, "100", kSame, {}, "default here: steps_per_print, else 10"},
    {"save", kValue, "", kAlias, "out"},
    {"save-interval", kValue, "", kSame},
    {"load", kValue, "", kSame, {}, "the newest checkpoint in it; an empty or absent folder is a fresh start"},
    {"load-tag", kValue, "", kRefused, {}, "name the checkpoint's folder: --resume DIR"},
    {"finetune", kFlag, "", kRefused, {}, kWhole},
    {"no-load-optim", kFlag, "", kRefused, {}, kWhole},
    {"no-load-rng", kFlag, "", kRefused, {}, kWhole},
    {"no-load-lr-state", kFlag, "", kRefused, {}, kWhole},
    {"no-save-optim", kFlag, "", kRefused, {}, "a checkpoint holds all that a run needs; OUT/model holds the weights alone"},
    {"no-save-rng", kFlag, "", kNoMeaning, {}, "random numbers depend on seed and step; there is no state to save"},
    {"override-opt-param-scheduler", kFlag, "", kSame},
    {"use-checkpoint-opt-param-scheduler", kFlag, "", kSame},
    {"universal-checkpoint", kFlag, "", kNoMeaning, {}, "checkpoints load on any number of ranks as they are"},
    {"use-checkpoint-args", kFlag, "", kRefused, {}, "give the flags that the run began with"},
    {"tensor-model-parallel-size", kValue, "1", kRefused, {}, kDataParallel, "1"},
    {"pipeline-model-parallel-size", kValue, "1", kRefused, {}, kDataParallel, "1"},
    {"ds-sequence-parallel-size", kValue, "1", kRefused, {}, kDataParallel, "1"},
    {"sequence-parallel", kFlag, "", kNoMeaning, {}, "it belongs to tensor parallelism"},
    {"no-pipeline-parallel", kFlag, "", kNoMeaning, {}, "there is none"},
    {"distributed-backend", kValue, "nccl", kNoMeaning, {}, "NCCL on GPUs, Gloo or threads on the CPU"},
    {"distributed-timeout-minutes", kValue, "10", kSame},
    {"local-rank", kValue, "", kNoMeaning, {}, "the launcher's environment says it"},
    {"recompute-granularity", kValue, "", kSame, {}, "full: every block; selective: nothing, as attention's probabilities are never kept"},
    {"recompute-method", kValue, "uniform", kSame, {}, "uniform: each block from its own input; block: the first recompute-num-layers blocks"},
    {"recompute-num-layers", kValue, "1", kSame},
    {"recompute-activations", kFlag, "", kNoMeaning, {}, "attention's probabilities are never kept"},
    {"checkpoint-activations", kFlag, "", kAlias, "gradient-checkpointing"},
    {"checkpoint-num-layers", kValue, "1", kNoMeaning, {}, "each block is recomputed from its own input"},
    {"deepspeed-activation-checkpointing", kFlag, "", kNoMeaning, {}, "there is one way to recompute; --checkpoint-activations asks for it"},
    {"partition-activations", kFlag, "", kNoMeaning, {}, "it belongs to tensor parallelism"},
    {"checkpoint-in-cpu", kFlag, "", kRefused, {}, "block inputs stay on the device; recompute every block with --checkpoint-activations"},
    {"deepspeed", kFlag, "", kNoMeaning, {}, "DeepSpeed is not involved"},
    {"deepspeed-config", kValue, "", kAlias, "config"},
    {"zero-stage", kValue, "1.0", kSame, {}, "default here: the config's; without one 3 on several ranks"},
    {"zero-reduce-scatter", kFlag, "", kNoMeaning, {}, kBuckets},
    {"zero-contigious-gradients", kFlag, "", kNoMeaning, {}, kBuckets},
    {"zero-reduce-bucket-size", kValue, "", kNoMeaning, {}, kBuckets},
    {"zero-allgather-bucket-size", kValue, "", kNoMeaning, {}, kBuckets},
    {"remote-device", kValue, "none", kRefused, {}, "parameters and optimizer states live on the device; shard them with ZeRO stage 3", "none"},
    {"use-pin-memory", kFlag, "", kNoMeaning, {}, "it belongs to offloading"},
    {"cpu-optimizer", kFlag, "", kRefused, {}, "the optimizer runs where the shards are; shard them with ZeRO stage 3"},
    {"num-experts", kValue, "1", kRefused, {}, kNoExperts, "1"},
    {"topk", kValue, "1", kNoMeaning, {}, kNoExperts},
    {"data-path", kList, "", kAlias, "data"},
    {"train-data-path", kList, "", kSame},
    {"valid-data-path", kList, "", kSame},
    {"test-data-path", kList, "", kSame},
    {"split", kValue, "969, 30, 1", kSame},
    {"data-impl", kValue, "infer", kNoMeaning, {}, "the file says what it is; the memory-mapped form is read"},
    {"data-cache-path", kValue, "", kNoMeaning, {}, "samples are computed, no index is kept"},
    {"mmap-warmup", kFlag, "", kNoMeaning, {}, "the system reads ahead"},
    {"num-workers", kValue, "2", kNoMeaning, {}, "samples are cut from the mapped file"},
    {"dataloader-type", kValue, "single", kRefused, {}, "the order of samples is a function of the seed", "single"},
    {"tokenizer-type", kValue, "", kNoMeaning, {}, kTokenized},
    {"vocab-file", kValue, "", kSame, {}, "tells the size of the vocabulary and the end token"},
    {"merge-file", kValue, "", kNoMeaning, {}, kTokenized},
    {"tokenizer-model", kValue, "", kNoMeaning, {}, kTokenized},
    {"reset-position-ids", kFlag, "", kSame},
    {"reset-attention-mask", kFlag, "", kSame},
    {"eod-mask-loss", kFlag, "", kSame},
    {"train-data-exact-num-epochs", kValue, "", kAlias, "num-train-epochs"},
    {"tensorboard-dir", kValue, "", kAlias, "tensorboard"},
    {"tensorboard-queue-size", kValue, "1000", kNoMeaning, {}, kLogs},
    {"log-timers-to-tensorboard", kFlag, "", kNoMeaning, {}, kLogs},
    {"log-batch-size-to-tensorboard", kFlag, "", kNoMeaning, {}, kLogs},
    {"log-validation-ppl-to-tensorboard", kFlag, "", kNoMeaning, {}, kLogs},
    {"log-params-norm", kFlag, "", kNoMeaning, {}, "it is not measured"},
    {"log-num-zeros-in-grad", kFlag, "", kNoMeaning, {}, "they are not counted"},
};
// clang-format on

}  // namespace

const ForeignFlags& megatron_pretrain() {
  static const ForeignFlags table{"Megatron", "megatron_flags.md", kPretrain};
  return table;
}

}  // namespace reknit
