// The config's top level and its small sections.
#include "reknit/config/deepspeed_keys.h"

namespace reknit {
namespace {

using enum KeyKind;
constexpr KeyFate kNoMeaning = KeyFate::kNoMeaning;
constexpr KeyFate kRefused = KeyFate::kRefused;

#define TARGET(member) [](DeepSpeedConfig& c) -> KeyTarget { return &c.member; }

const std::vector<KeySpec> kTopLevel = {
    {"train_batch_size",
     kInteger,
     "null",
     "Sequences of one optimizer step, over all ranks.",
     {},
     {},
     TARGET(batch.global)},
    {"train_micro_batch_size_per_gpu",
     kInteger,
     "null",
     "Sequences of one forward and backward on one rank.",
     {},
     {},
     TARGET(batch.micro)},
    {"gradient_accumulation_steps",
     kInteger,
     "null",
     "Forwards and backwards of a rank before each optimizer step.",
     {},
     {},
     TARGET(batch.accumulation)},
    {"managed_gradient_accumulation", kBool, "true",
     "False leaves the accumulation boundary to the caller.", kRefused,
     "the command always manages the boundary; from C++ call the engine's step yourself"},
    {"steps_per_print",
     kInteger,
     "null",
     "Prints progress every so many optimizer steps.",
     {},
     {},
     TARGET(steps_per_print),
     {},
     1},
    {"gradient_clipping",
     kNumber,
     "1.0",
     "Largest global L2 norm of the gradients; 0 is off.",
     {},
     {},
     TARGET(gradient_clipping),
     {},
     0},
    {"prescale_gradients", kBool, "false", "Divides gradients before they are reduced.", kNoMeaning,
     "gradients are divided by the token count of the global batch"},
    {"gradient_predivide_factor", kNumber, "1.0",
     "Splits the division before and after the reduction.", kNoMeaning,
     "gradients are divided by the token count of the global batch"},
    {"gradient_allreduce_op",
     kChoice,
     "\"mean\"",
     "How gradients of ranks are combined.",
     kRefused,
     "the loss is a mean over the tokens of the global batch; leave it at mean",
     {},
     "mean|sum"},
    {"communication_data_type",
     kChoice,
     "null",
     "Type of gradients while they are summed over ranks.",
     {},
     {},
     TARGET(communication_data_type),
     "fp32|fp16|bf16"},
    {"seq_parallel_communication_data_type",
     kChoice,
     "\"fp32\"",
     "The same for sequence-parallel traffic.",
     kNoMeaning,
     "there is no sequence parallelism",
     {},
     "fp32|fp16|bf16"},
    {"sparse_gradients", kBool, "false", "Reduces embedding gradients as sparse rows.", kNoMeaning,
     "embedding gradients are reduced dense; the result is the same"},
    {"disable_allgather", kBool, "false", "Legacy switch.", kNoMeaning,
     "it has no effect in DeepSpeed either"},
    {"dump_state", kBool, "false", "Prints the engine's state at start.", kNoMeaning,
     "the run folder's config.json holds every setting as resolved"},
    {"memory_breakdown", kBool, "false", "Prints memory figures.", kNoMeaning,
     "metrics.jsonl has peak_bytes for every step"},
    {"wall_clock_breakdown",
     kBool,
     "false",
     "Measures and prints the time of each part of a step.",
     {},
     {},
     TARGET(wall_clock_breakdown)},
    {"graph_harvesting", kBool, "false", "Captures training graphs.", kNoMeaning,
     "training steps are not captured"},
    {"zero_allow_untested_optimizer", kBool, "false", "Lets any optimizer run under ZeRO.",
     kNoMeaning, "every optimizer here runs under every ZeRO stage"},
    {"zero_force_ds_cpu_optimizer", kBool, "true", "Requires DeepSpeed's CPU optimizer.",
     kNoMeaning, "there is one optimizer for all devices"},
    {"dataloader_drop_last", kBool, "false", "Drops the incomplete last batch.", kRefused,
     "the incomplete last batch is kept and weighted by its tokens; cut the data instead"},
    {"log_level", kText, "null", "DeepSpeed's log level.", kNoMeaning,
     "Reknit's log has its own level"},
    {"sequence_parallel_size",
     kInteger,
     "null",
     "Ranks that share one sequence.",
     kRefused,
     "sequence parallelism is not built; leave it out",
     {},
     {},
     1},
    {"data_parallel_size", kInteger, "null", "Data-parallel ranks.", kNoMeaning,
     "all ranks are data-parallel"},
    {"use_data_before_expert_parallelism", kBool, "false", "Order of ranks for experts.",
     kNoMeaning, "there are no expert groups"},
};

KeySpec not_built(std::string_view path, std::string_view sentence, std::string_view reason) {
  return {path, kOpenSection, "null", sentence, kRefused, reason};
}

std::vector<KeySpec> secondary() {
  return {
      not_built("amp", "NVIDIA apex mixed precision.", "use fp16 or bf16"),
      not_built("torch_autocast", "PyTorch's autocast.", "use fp16 or bf16"),
      not_built("eigenvalue", "Eigenvalues of layers.", "it is not built"),
      not_built("progressive_layer_drop", "Drops layers while training.", "it is not built"),
      not_built("curriculum_learning", "Grows the sequence length.",
                "it is not built; order the data instead"),
      not_built("data_efficiency", "Data sampling and routing.",
                "it is not built; order the data instead"),
      not_built("compression_training", "Quantises and prunes while training.", "it is not built"),
      not_built("elasticity", "Chooses batch sizes for any number of ranks.",
                "it is not built; checkpoints load on any number of ranks as they are"),
      not_built("autotuning", "Searches for settings.", "it is not built; see reknit check"),
      not_built("sparse_attention", "Block-sparse attention.", "it is not built"),
      not_built("pipeline", "Pipeline parallelism.", "it is not built; use ZeRO stage 3"),
      not_built("quantize_training", "Quantises while training.", "it is not built"),
      not_built("nebula", "Azure's checkpoint service.", "checkpoints go to a folder"),
      not_built("datastates_ckpt", "DataStates' checkpoint engine.", "checkpoints go to a folder"),
      not_built("tensor_parallel", "Automatic tensor parallelism.",
                "it is not built; use ZeRO stage 3"),
      not_built("compile", "Graph-level ZeRO through torch.compile.",
                "forward and backward are hand-written; there is no graph to compile"),
      not_built("expert_parallel", "Automatic expert parallelism.", "it is not built"),
  };
}

std::vector<KeySpec> activation_checkpointing() {
  const std::string_view why =
      "which activations are saved is chosen per model (--gradient-checkpointing)";
  return {
      {"activation_checkpointing", kSection, "null",
       "How recomputed activations are kept (the model decides whether)."},
      {"activation_checkpointing.partition_activations", kBool, "false",
       "Splits them over model-parallel ranks.", kNoMeaning, why},
      {"activation_checkpointing.cpu_checkpointing", kBool, "false", "Keeps them in host memory.",
       kNoMeaning, why},
      {"activation_checkpointing.contiguous_memory_optimization", kBool, "false",
       "Keeps them in one buffer.", kNoMeaning, why},
      {"activation_checkpointing.synchronize_checkpoint_boundary", kBool, "false",
       "Waits for the device at each boundary.", kNoMeaning, why},
      {"activation_checkpointing.profile", kBool, "false", "Times each part.", kNoMeaning, why},
      {"activation_checkpointing.number_checkpoints", kInteger, "null", "Parts of the model.",
       kNoMeaning, why},
  };
}

std::vector<KeySpec> profilers() {
  const std::string_view flops = "metrics.jsonl has tflops for every step";
  const std::string_view timers = "metrics.jsonl has seconds for every step";
  return {
      {"flops_profiler", kSection, "null", "Counts floating-point operations."},
      {"flops_profiler.enabled", kBool, "false", "Turns it on.", kNoMeaning, flops},
      {"flops_profiler.recompute_fwd_factor", kNumber, "0.0", "Weight of recomputation.",
       kNoMeaning, flops},
      {"flops_profiler.profile_step", kInteger, "1", "The step it looks at.", kNoMeaning, flops},
      {"flops_profiler.module_depth", kInteger, "-1", "Depth of its report.", kNoMeaning, flops},
      {"flops_profiler.top_modules", kInteger, "1", "Modules in its report.", kNoMeaning, flops},
      {"flops_profiler.detailed", kBool, "true", "Length of its report.", kNoMeaning, flops},
      {"flops_profiler.output_file", kText, "null", "File of its report.", kNoMeaning, flops},
      {"timers", kSection, "null", "Engine timers."},
      {"timers.throughput", kSection, "null", "Throughput timer."},
      {"timers.throughput.enabled", kBool, "true", "Turns it on.", kNoMeaning, timers},
      {"timers.throughput.synchronized", kBool, "true", "Waits for the device.", kNoMeaning,
       timers},
  };
}

std::vector<KeySpec> comms_logger() {
  return {
      {"comms_logger", kSection, "null", "Times of every collective; docs/communication.md."},
      {"comms_logger.enabled",
       kBool,
       "false",
       "Turns it on.",
       {},
       {},
       TARGET(comms_logger.enabled)},
      {"comms_logger.verbose",
       kBool,
       "false",
       "Prints each operation of rank 0, at the end of its step.",
       {},
       {},
       TARGET(comms_logger.verbose)},
      {"comms_logger.prof_all",
       kBool,
       "true",
       "All operations; false: those of prof_ops.",
       {},
       {},
       TARGET(comms_logger.prof_all)},
      {"comms_logger.debug",
       kBool,
       "false",
       "With verbose: the group of ranks and the operation's number there.",
       {},
       {},
       TARGET(comms_logger.debug)},
      {"comms_logger.prof_ops",
       kTextList,
       "[]",
       "The operations that are logged without prof_all.",
       {},
       {},
       TARGET(comms_logger.prof_ops),
       "all_gather|reduce_scatter|all_reduce|broadcast|all_to_all|barrier|all_gather_into_tensor|"
       "reduce_scatter_tensor|all_to_all_single|all_gather_base|reduce_scatter_base"},
  };
}

std::vector<KeySpec> monitors() {
  const std::string_view why = "this writer is not built in; metrics.jsonl has the same numbers";
  const std::string_view detail = "it belongs to a writer that is not built in";
  std::vector<KeySpec> keys;
  auto add = [&](std::string_view path, KeyKind kind, std::string_view value,
                 std::string_view sentence) {
    const bool section = kind == kSection;
    const bool switches = path.ends_with(".enabled");
    keys.push_back({path, kind, value, sentence,
                    section    ? KeyFate::kImplemented
                    : switches ? kRefused
                               : kNoMeaning,
                    section    ? ""
                    : switches ? why
                               : detail});
  };
  keys = {
      {"tensorboard", kSection, "null", "TensorBoard event files."},
      {"tensorboard.enabled", kBool, "false", "Turns it on.", {}, {}, TARGET(tensorboard.enabled)},
      {"tensorboard.output_path",
       kText,
       "\"\"",
       "Their folder.",
       {},
       {},
       TARGET(tensorboard.output_path)},
      {"tensorboard.job_name",
       kText,
       "\"DeepSpeedJobName\"",
       "Their subfolder.",
       {},
       {},
       TARGET(tensorboard.job_name)},
      {"csv_monitor", kSection, "null", "CSV files."},
      {"csv_monitor.enabled", kBool, "false", "Turns it on.", {}, {}, TARGET(csv_monitor.enabled)},
      {"csv_monitor.output_path",
       kText,
       "\"\"",
       "Their folder.",
       {},
       {},
       TARGET(csv_monitor.output_path)},
      {"csv_monitor.job_name",
       kText,
       "\"DeepSpeedJobName\"",
       "Their subfolder.",
       {},
       {},
       TARGET(csv_monitor.job_name)},
  };
  add("wandb", kSection, "null", "Weights & Biases.");
  add("wandb.enabled", kBool, "false", "Turns it on.");
  add("wandb.group", kText, "null", "Group of runs.");
  add("wandb.team", kText, "null", "Team.");
  add("wandb.project", kText, "\"deepspeed\"", "Project.");
  add("comet", kSection, "null", "Comet.");
  add("comet.enabled", kBool, "false", "Turns it on.");
  add("comet.samples_log_interval", kInteger, "100", "Samples between entries.");
  add("comet.project", kText, "null", "Project.");
  add("comet.workspace", kText, "null", "Workspace.");
  add("comet.api_key", kText, "null", "Key of the account.");
  add("comet.experiment_name", kText, "null", "Name of the experiment.");
  add("comet.experiment_key", kText, "null", "Key of the experiment.");
  add("comet.online", kBool, "null", "Sends at once.");
  add("comet.mode", kText, "null", "How it starts.");
  return keys;
}

std::vector<KeySpec> storage() {
  const std::string_view aio = "nothing is kept on NVMe";
  const std::string_view writer = "checkpoints have one writer, in parallel over ranks";
  return {
      {"aio", kSection, "null", "Asynchronous file access."},
      {"aio.block_size", kInteger, "1048576", "Bytes a request.", kNoMeaning, aio},
      {"aio.queue_depth", kInteger, "8", "Requests in flight.", kNoMeaning, aio},
      {"aio.intra_op_parallelism", kInteger, "1", "Threads a transfer.", kNoMeaning, aio},
      {"aio.single_submit", kBool, "false", "Submits one by one.", kNoMeaning, aio},
      {"aio.overlap_events", kBool, "true", "Overlaps submission and completion.", kNoMeaning, aio},
      {"aio.use_gds", kBool, "false", "GPUDirect storage.", kNoMeaning, aio},
      {"checkpoint", kSection, "null", "How checkpoints are written and read."},
      {"checkpoint.tag_validation",
       kChoice,
       "\"WARN\"",
       "What if ranks name different tags.",
       kNoMeaning,
       "a checkpoint is named by its step",
       {},
       "IGNORE|WARN|FAIL"},
      {"checkpoint.load_universal", kBool, "false", "Loads DeepSpeed's universal form.", kNoMeaning,
       "every checkpoint here loads on any number of ranks"},
      {"checkpoint.use_node_local_storage", kBool, "false", "Each node has its own folder.",
       kRefused, "checkpoints go to one folder that all nodes see"},
      {"checkpoint.parallel_write", kSection, "null", "Parallel writing."},
      {"checkpoint.parallel_write.pipeline_stage", kBool, "false", "Over pipeline stages.",
       kNoMeaning, writer},
      {"checkpoint.checkpoint_serialization", kBool, "true", "Torch's serialisation.", kNoMeaning,
       "checkpoints are safetensors files"},
      {"checkpoint.writer", kOpenSection, "null", "DeepSpeed's writer.", kNoMeaning, writer},
  };
}

}  // namespace

std::vector<KeySpec> general_keys() {
  std::vector<KeySpec> keys;
  for (const auto& part : {kTopLevel, secondary(), activation_checkpointing(), profilers(),
                           comms_logger(), monitors(), storage()}) {
    keys.insert(keys.end(), part.begin(), part.end());
  }
  return keys;
}

}  // namespace reknit
