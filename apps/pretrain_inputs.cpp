#include "apps/pretrain_inputs.h"

#include "apps/session.h"
#include "reknit/base/log.h"
#include "reknit/checkpoint/json_text.h"

#include <filesystem>

namespace reknit {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Tokens and the end of documents, of a tokenizer or a vocab.json.
struct Vocabulary {
  int64_t size = 0;
  std::optional<int64_t> eod;
};

Vocabulary read_vocabulary(const PretrainOptions& o, const std::optional<Tokenizer>& tokenizer) {
  if (tokenizer) {
    return {tokenizer->vocabulary_size(), tokenizer->eos()};
  }
  Vocabulary vocabulary;
  if (!o.shape.vocab_file.empty()) {
    const json tokens = read_json_object(o.shape.vocab_file);
    for (const auto& [token, id] : tokens.items()) {
      require<InputError>(id.is_number_integer(), o.shape.vocab_file, " gives the token ", token,
                          " the id ", id.dump());
      vocabulary.size = std::max(vocabulary.size, id.get<int64_t>() + 1);
    }
    if (tokens.contains("<|endoftext|>")) {
      vocabulary.eod = tokens.at("<|endoftext|>").get<int64_t>();
    }
  }
  return vocabulary;
}

/// The GPT-2 of Megatron's flags.
json shape_config(const PretrainOptions& o, const Vocabulary& vocabulary) {
  const ShapeOptions& shape = o.shape;
  const int64_t tokens = shape.vocab_size > 0 ? shape.vocab_size : vocabulary.size;
  if (tokens == 0) {
    throw UsageError("the size of the vocabulary is not known",
                     "pass --tokenizer DIR, --vocab-file FILE or --vocab-size N");
  }
  const int64_t multiple = shape.make_vocab_size_divisible_by;
  const auto whole = [](int64_t given, int64_t otherwise) { return given > 0 ? given : otherwise; };
  json config = {
      {"model_type", "gpt2"},
      {"vocab_size", (tokens + multiple - 1) / multiple * multiple},
      {"n_layer", shape.num_layers},
      {"n_embd", shape.hidden_size},
      {"n_head", shape.num_attention_heads},
      {"n_inner", whole(shape.ffn_hidden_size, 4 * shape.hidden_size)},
      {"n_positions", whole(shape.max_position_embeddings, o.seq_length)},
      {"activation_function", "gelu_new"},
      {"initializer_range", shape.init_method_std},
      {"layer_norm_epsilon", shape.layernorm_epsilon},
      {"resid_pdrop", o.hidden_dropout.value_or(0.1)},
      {"embd_pdrop", o.hidden_dropout.value_or(0.1)},
      {"attn_pdrop", o.attention_dropout.value_or(0.1)},
      {"tie_word_embeddings", !shape.untie_embeddings},
  };
  const json eod = vocabulary.eod ? json(*vocabulary.eod) : json();
  config["bos_token_id"] = eod;
  config["eos_token_id"] = eod;
  return config;
}

DocumentRules document_rules(const PretrainOptions& o, const Vocabulary& vocabulary,
                             const ModelSpec& spec) {
  DocumentRules rules{o.eod.value_or(vocabulary.eod.value_or(spec.eos)), o.eod_mask_loss,
                      o.reset_position_ids, o.reset_attention_mask};
  if (rules.eod < 0 &&
      (rules.mask_loss || rules.reset_position_ids || rules.reset_attention_mask)) {
    throw UsageError("nothing says which token ends a document",
                     "pass --eod-token ID, or --tokenizer DIR");
  }
  return rules;
}

void read_data(const PretrainOptions& o, PretrainInputs& inputs) {
  const GptDatasetSpec spec{.sequence_length = o.seq_length,
                            .seed = static_cast<uint64_t>(o.seed),
                            .vocabulary_size = inputs.spec.vocab};
  const auto open = [&](const std::vector<std::string>& words) {
    TokenBlend blend(parse_blend(words));
    for (const auto& file : blend.files()) {
      inputs.data.push_back({{"sequences", file->sequences()}, {"tokens", file->tokens()}});
    }
    return blend;
  };
  if (!o.data.empty()) {
    const TokenBlend blend = open(o.data);
    inputs.data.push_back(o.split);
    inputs.train = blend.part(o.split, Part::kTrain, spec);
    inputs.valid = blend.part(o.split, Part::kValid, spec);
    inputs.test = blend.part(o.split, Part::kTest, spec);
  } else {
    const auto whole = [&](const std::vector<std::string>& words) {
      return words.empty() ? nullptr : open(words).part("1", Part::kTrain, spec);
    };
    inputs.train = whole(o.train_data);
    inputs.valid = whole(o.valid_data);
    inputs.test = whole(o.test_data);
  }
  if (inputs.train == nullptr) {
    throw UsageError(str("--split ", o.split, " leaves nothing to train on"),
                     "the first number is the share of training");
  }
}

/// Reads what is at --model: {folder, has weights}.
std::pair<HfFolder, bool> read_model(const PretrainOptions& o, const Vocabulary& vocabulary) {
  if (o.model.empty()) {
    return {HfFolder::without_weights(shape_config(o, vocabulary), o.tokenizer_dir), false};
  }
  if (fs::is_regular_file(o.model)) {
    const std::string beside = fs::absolute(o.model).parent_path().string();
    return {HfFolder::without_weights(read_json_object(o.model),
                                      o.tokenizer_dir.empty() ? beside : o.tokenizer_dir),
            false};
  }
  return {HfFolder(o.model), true};
}

int64_t in_samples(const PretrainOptions& o, const std::optional<int64_t>& steps,
                   const std::optional<int64_t>& samples, const std::optional<int64_t>& tokens,
                   int64_t otherwise) {
  if (steps) {
    return batch_plan(o).samples_for(*steps);
  }
  return samples ? *samples : tokens ? (*tokens + o.seq_length - 1) / o.seq_length : otherwise;
}

}  // namespace

PretrainInputs read_pretrain_inputs(const PretrainOptions& o) {
  const std::string beside =
      fs::is_regular_file(o.model) ? fs::absolute(o.model).parent_path().string() : o.model;
  const std::optional<Tokenizer> tokenizer = o.tokenizer_dir.empty() && beside.empty()
                                                 ? std::nullopt
                                                 : find_tokenizer(o.tokenizer_dir, beside);
  const Vocabulary vocabulary = read_vocabulary(o, tokenizer);
  const auto [folder, has_weights] = read_model(o, vocabulary);
  ModelSpec spec = model_spec(folder, false);
  if (o.hidden_dropout) {
    spec.hidden_dropout = *o.hidden_dropout;
    spec.embed_dropout = spec.embed_dropout > 0 || o.model.empty() ? *o.hidden_dropout : 0.0;
  }
  spec.attention_dropout = o.attention_dropout.value_or(spec.attention_dropout);
  const DocumentRules rules = document_rules(o, vocabulary, spec);
  PretrainInputs inputs{spec,
                        folder,
                        has_weights,
                        o.tokenizer_dir.empty()
                            ? folder
                            : HfFolder::without_weights(folder.config(), o.tokenizer_dir),
                        rules,
                        nullptr,
                        nullptr,
                        nullptr,
                        json::array()};
  spec.require_length(o.seq_length);
  read_data(o, inputs);
  return inputs;
}

BatchPlan batch_plan(const PretrainOptions& o) {
  BatchPlan plan{o.global_batch.value_or(o.settings.reading.batch.global), 0, 0, 0};
  if (!o.rampup.empty()) {
    plan = {plan.global, o.rampup[0], plan.global > o.rampup[0] ? o.rampup[1] : 0, o.rampup[2]};
  }
  return plan;
}

int64_t total_steps(const PretrainOptions& o, const PretrainInputs& inputs) {
  if (o.steps) {
    return *o.steps;
  }
  int64_t samples = 0;
  if (o.train_samples || o.train_tokens) {
    samples = o.train_samples ? *o.train_samples : *o.train_tokens / o.seq_length;
  } else {
    for (const BlendedDataset::Source& source : inputs.train->sources()) {
      samples += source.data->samples_in(o.num_train_epochs);
    }
  }
  const int64_t steps = batch_plan(o).steps_for(samples);
  if (steps == 0) {
    throw UsageError(str(samples, " samples are less than one global batch of ",
                         batch_plan(o).at(0), " sequences"),
                     "pass a smaller --global-batch-size, or more data");
  }
  return steps;
}

std::optional<Schedule> sample_schedule(const PretrainOptions& o, int64_t steps) {
  const DecayOptions& d = o.decay;
  if (d.style.empty()) {
    return std::nullopt;
  }
  Schedule schedule{.kind = Schedule::parse_megatron(d.style), .min_lr = d.min_lr};
  schedule.total = in_samples(o, d.decay_iters, d.decay_samples, d.decay_tokens,
                              batch_plan(o).samples_for(steps));
  const auto part =
      static_cast<int64_t>(d.warmup_fraction.value_or(0.0) * static_cast<double>(schedule.total));
  schedule.warmup = in_samples(o, d.warmup_iters, d.warmup_samples, d.warmup_tokens, part);
  if (schedule.kind != ScheduleKind::kMegatronConstant && schedule.warmup >= schedule.total) {
    throw UsageError(str("the warm-up of ", schedule.warmup, " samples does not end before the ",
                         "decay, after ", schedule.total),
                     "shorten the warm-up, or lengthen the decay");
  }
  const double own = o.settings.reading.config.optimizer.lr.value_or(0.0);
  const double lr = std::min(own, d.decoupled_lr.value_or(own));
  if (schedule.min_lr > lr) {
    throw UsageError(str("--min-lr ", schedule.min_lr, " is above the rate of ", lr),
                     "lower --min-lr");
  }
  return schedule;
}

std::optional<DecayRamp> weight_decay_ramp(const PretrainOptions& o, int64_t steps) {
  if (!o.decay.ramps()) {
    return std::nullopt;
  }
  return DecayRamp{.style = DecayRamp::parse(o.decay.ramp_style),
                   .start = *o.decay.start_weight_decay,
                   .end = *o.decay.end_weight_decay,
                   .total = batch_plan(o).samples_for(steps)};
}

Checkpointing checkpointing(const PretrainOptions& o) {
  if (o.checkpoint_every > 0) {
    return {o.checkpoint_every};
  }
  if (o.settings.gradient_checkpointing || o.recompute_granularity == "full") {
    return o.recompute_method == "block" ? Checkpointing{1, o.recompute_num_layers}
                                         : Checkpointing::kFull;
  }
  return Checkpointing::kNone;
}

}  // namespace reknit
