// What each command was asked to do: plain structs that the flags fill. Paths exist
// and values are in range by the time a command sees them.
#pragma once

#include "apps/place.h"
#include "reknit/config/deepspeed.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace reknit {

/// Where and how to run: shared by every command that opens a model.
struct RunOptions {
  std::string config_file;        ///< --config; empty: none
  std::vector<std::string> sets;  ///< --set KEY=VALUE
  std::optional<int64_t> ranks;
  std::optional<int64_t> nodes;
  std::string device;  ///< "cpu", "cuda"; empty: cuda if there is a GPU
  std::string dtype;   ///< "fp32", "bf16", "fp16"; empty: the config's, else the device's
  std::optional<int64_t> batch;
  int64_t seed = 1234;
  bool deterministic = false;
  int64_t timeout_s = 600;
  std::string trace_file;
  bool share_gpus = false;

  Place place;  ///< as resolved; set after parsing
};

/// A run folder and how long to run: shared by the commands that train.
struct TrainOptions : RunOptions {
  std::optional<int64_t> steps;
  int64_t num_train_epochs = 1;
  std::string out;
  bool overwrite = false;
  std::optional<int64_t> save_interval;
  bool sync_save = false;  ///< the run waits while a checkpoint is written
  int64_t keep = 2;
  std::string resume;       ///< "auto" or a checkpoint's folder; empty: a fresh start
  std::string resume_from;  ///< where "auto" looks; empty: out
  std::optional<double> time_limit_min;
  std::optional<int64_t> log_interval;
  bool tensorboard = false;     ///< writes event files
  std::string tensorboard_dir;  ///< their folder; empty: in --out
  bool deepspeed_chat = false;  ///< --compat deepspeed-chat
};

/// How to choose the next token. Temperature 0 is greedy.
struct SamplingOptions {
  double temperature = 1.0;
  int64_t top_k = 0;  ///< 0: off
  double top_p = 1.0;
  int64_t min_new_tokens = 0;
};

/// One trained model's settings, the shared ones and its own merged.
struct ModelSettings {
  std::optional<int64_t> zero_stage;
  std::string config_file;  ///< its own; empty: --config
  std::optional<double> learning_rate;
  std::optional<double> weight_decay;
  bool gradient_checkpointing = false;

  ConfigReading reading;      ///< as resolved: no errors; set after parsing
  std::string resolved_json;  ///< the config that was read, for the run folder
  std::string learning_rate_from;
};

enum class LrScheduler { kConstant, kConstantWithWarmup, kLinear, kCosine };

struct PpoOptions : TrainOptions {
  std::string actor_dir;
  std::string critic_dir;     ///< empty: the actor's folder with a new value head
  std::string reference_dir;  ///< empty: the actor's
  std::string reward_dir;     ///< one of the four rewards, or none: the critic's folder
  std::string reward_fn;      ///< FILE.py:FUNCTION
  std::string reward_cmd;
  std::string reward_rule;
  bool allow_random_reward = false;
  std::vector<std::string> prompts;
  std::string tokenizer_dir;

  int64_t generation_batch = 0;  ///< prompts a rank and generation
  int64_t training_batch = 0;    ///< sequences of a rank's micro-batch
  int64_t generation_batches = 1;
  std::optional<int64_t> global_batch;  ///< prompts a step over all ranks, in one update
  int64_t ppo_epochs = 1;
  int64_t max_prompt_len = 256;
  int64_t max_answer_len = 256;
  SamplingOptions sampling;

  double kl_ctl = 0.1;
  double clip_reward_value = 5;
  double cliprange = 0.2;
  double cliprange_value = 0.2;
  double gamma = 1.0;
  double lam = 0.95;
  double unsup_coef = 27.8;
  double ema_beta = 0.992;
  bool enable_ema = false;
  bool align_overflow = false;
  int64_t num_padding_at_beginning = 1;
  int64_t save_samples = 0;

  ModelSettings actor;
  ModelSettings critic;
  std::optional<int64_t> gradient_accumulation_steps;
  bool unpin_actor_parameters = false;
  bool release_inference_cache = false;
  LrScheduler lr_scheduler = LrScheduler::kConstant;  ///< unless the config has a scheduler
  int64_t num_warmup_steps = 0;
};

/// A GPT-2 described by Megatron's flags; 0: not given.
struct ShapeOptions {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t ffn_hidden_size = 0;
  int64_t max_position_embeddings = 0;
  int64_t vocab_size = 0;
  std::string vocab_file;
  int64_t make_vocab_size_divisible_by = 128;
  double init_method_std = 0.02;
  double layernorm_epsilon = 1e-5;
  bool untie_embeddings = false;
};

/// Megatron's schedule as given: at most one number each of decay and warm-up.
struct DecayOptions {
  std::string style;  ///< empty: not given
  double min_lr = 0;
  std::optional<double> decoupled_lr;  ///< of the token table, and of an output table
  std::optional<int64_t> decay_iters, decay_samples, decay_tokens;
  std::optional<int64_t> warmup_iters, warmup_samples, warmup_tokens;
  std::optional<double> warmup_fraction;
  std::string ramp_style;  ///< of the weight decay: empty (not given), constant, linear, cosine
  std::optional<double> start_weight_decay, end_weight_decay;

  bool ramps() const { return !ramp_style.empty() && ramp_style != "constant"; }
};

struct PretrainOptions : TrainOptions {
  std::string model;  ///< a folder or a config.json; empty: `shape`
  ShapeOptions shape;
  std::string tokenizer_dir;
  std::vector<std::string> data;                               ///< PREFIX, or WEIGHT PREFIX ...
  std::vector<std::string> train_data, valid_data, test_data;  ///< in place of data and split
  std::string split = "969,30,1";
  int64_t seq_length = 0;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  std::optional<int64_t> eod;  ///< the end-of-document token; none: the tokenizer's or model's

  std::optional<int64_t> global_batch;  ///< sequences a step over all ranks
  std::vector<int64_t> rampup;          ///< start, increment, samples; empty: none
  std::optional<int64_t> train_samples, train_tokens;
  bool epochs_given = false;  ///< --num-train-epochs says how long the run is
  DecayOptions decay;
  bool override_schedule = false;        ///< on resume: the flags' schedule counts
  bool use_checkpoint_schedule = false;  ///< on resume: the checkpoint's counts

  int64_t eval_interval = 1000;
  int64_t eval_iters = 100;
  int64_t exit_interval = 0;  ///< 0: none
  std::optional<double> hidden_dropout, attention_dropout;
  std::string recompute_granularity, recompute_method;
  int64_t recompute_num_layers = 1;
  int64_t checkpoint_every = 0;  ///< recomputes every n-th block; 0: as the others say
  bool wall_clock_breakdown = false;

  bool fp16 = false, bf16 = false;  ///< as --dtype
  std::optional<double> clip_grad, adam_beta1, adam_beta2, adam_eps;
  std::optional<double> loss_scale, initial_loss_scale, min_loss_scale;
  std::optional<int64_t> loss_scale_window, hysteresis;
  ModelSettings settings;
};

struct GenerateOptions : RunOptions {
  std::string model_dir;
  std::string tokenizer_dir;
  std::string prompt;                ///< one of the two
  std::vector<std::string> prompts;  ///< files
  int64_t max_new_tokens = 0;
  SamplingOptions sampling{.temperature = 0};
  bool chat = false;
  std::string out;  ///< JSON lines; empty: standard output
  ModelSettings settings;
};

struct ScoreOptions : RunOptions {
  std::string model_dir;
  std::string tokenizer_dir;
  std::vector<std::string> inputs;
  std::string out;
  ModelSettings settings;
};

struct InitOptions {
  std::string config_json;  ///< a model's config.json, or a folder that holds one
  std::string out;
  int64_t seed = 1234;
  Precision dtype = Precision::kFp32;
  bool value_head = false;
  bool overwrite = false;
};

struct ExportOptions {
  std::string checkpoint;  ///< a checkpoint's folder or a run's
  std::string out;
  std::string model;               ///< empty: the actor, or the only one
  std::string model_config;        ///< of a DeepSpeed checkpoint: a config.json or a folder
  std::optional<Precision> dtype;  ///< none: the run's; fp32 for a DeepSpeed checkpoint
  bool overwrite = false;
};

struct DataBuildOptions {
  std::vector<std::string> inputs;
  std::string tokenizer_dir;
  std::string out;  ///< the pair's name without its endings
  std::string json_key = "text";
  bool append_end = true;
  int64_t workers = 0;  ///< 0: not given; set after parsing
  bool overwrite = false;
};

struct DataShowOptions {
  std::string prefix;
  int64_t count = 2;
  std::string tokenizer_dir;    ///< empty: ids alone
  int64_t sequence_length = 0;  ///< 0: sequences, not samples
  std::string split = "969,30,1";
  int64_t seed = 1234;
};

struct CheckOptions {
  std::string config_file;
  std::vector<std::string> sets;
  std::optional<int64_t> batch;
  int64_t ranks = 1;
  int64_t nodes = 1;
};

struct EnvOptions {};

}  // namespace reknit
