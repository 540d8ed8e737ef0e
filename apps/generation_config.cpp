#include "apps/generation_config.h"

#include "reknit/base/error.h"
#include "reknit/checkpoint/json_text.h"

#include <nlohmann/json.hpp>

#include <filesystem>

namespace reknit {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kTopKOfTransformers = 50;

/// Keys that change which tokens are drawn and are not built, with the value that does nothing;
/// null and what is empty do nothing either.
const std::vector<std::pair<const char*, json>>& not_built() {
  static const std::vector<std::pair<const char*, json>> keys = {
      {"repetition_penalty", 1},
      {"encoder_repetition_penalty", 1},
      {"no_repeat_ngram_size", 0},
      {"encoder_no_repeat_ngram_size", 0},
      {"typical_p", 1},
      {"min_p", 0},
      {"top_h", nullptr},
      {"epsilon_cutoff", 0},
      {"eta_cutoff", 0},
      {"num_beams", 1},
      {"num_beam_groups", 1},
      {"num_return_sequences", 1},
      {"diversity_penalty", 0},
      {"penalty_alpha", 0},
      {"guidance_scale", 1},
      {"min_length", 0},
      {"bad_words_ids", nullptr},
      {"force_words_ids", nullptr},
      {"constraints", nullptr},
      {"forced_bos_token_id", nullptr},
      {"forced_eos_token_id", nullptr},
      {"suppress_tokens", nullptr},
      {"begin_suppress_tokens", nullptr},
      {"sequence_bias", nullptr},
      {"exponential_decay_length_penalty", nullptr},
      {"stop_strings", nullptr},
      {"dola_layers", nullptr},
      {"watermarking_config", nullptr},
      {"max_time", nullptr}};
  return keys;
}

class Reading {
 public:
  explicit Reading(const std::string& model_dir) {
    const fs::path folder = model_dir;
    file_ = (folder / "generation_config.json").string();
    if (!fs::exists(file_)) {
      file_ = (folder / "config.json").string();
    }
    keys_ = read_json_object(file_);
  }

  const std::string& file() const { return file_; }

  /// Null: not given.
  json get(const char* key) const {
    const auto found = keys_.find(key);
    return found == keys_.end() ? json() : *found;
  }

  template <class Number>
  std::optional<Number> number(const char* key, double least, double most) const {
    const json value = get(key);
    if (value.is_null()) {
      return std::nullopt;
    }
    const bool kind = std::is_integral_v<Number> ? value.is_number_integer() : value.is_number();
    require<InputError>(kind && value.get<double>() >= least && value.get<double>() <= most, file_,
                        ": ", key, " = ", value.dump(), " is not a number from ", least, " to ",
                        most);
    return value.get<Number>();
  }

  bool samples() const {
    const json value = get("do_sample");
    require<InputError>(value.is_null() || value.is_boolean(), file_,
                        ": do_sample = ", value.dump(), " is neither true nor false");
    return !value.is_null() && value.get<bool>();
  }

  void require_built() const {
    for (const auto& [key, neutral] : not_built()) {
      const json value = get(key);
      const bool nothing = value.is_null() || value == neutral || value == json(false) ||
                           (value.is_structured() && value.empty());
      if (!nothing) {
        throw InputError(
            str(file_, ": ", key, " = ", value.dump(), " is not built, and it changes the answers"),
            str("take ", key, " out of the file, or leave out --compat deepspeed-chat"));
      }
    }
  }

 private:
  std::string file_;
  json keys_;
};

/// The file's value, else the flag's, else the default; both may speak if they agree.
template <class Number>
Number agreed(const Reading& reading, const char* key, const std::optional<Number>& in_file,
              const std::string& flag, bool flag_given, Number value, Number otherwise) {
  if (in_file && flag_given && *in_file != value) {
    throw UsageError(
        str(flag, " ", value, " contradicts ", key, " = ", *in_file, " of ", reading.file()),
        "give the value in one place; without --compat deepspeed-chat the flag alone "
        "counts");
  }
  return in_file ? *in_file : flag_given ? value : otherwise;
}

}  // namespace

std::vector<std::string> sample_as_configured(const std::string& model_dir,
                                              const std::set<std::string>& flags,
                                              SamplingOptions& sampling) {
  const Reading reading(model_dir);
  reading.require_built();
  constexpr double kAny = 1e9;
  const bool hot = flags.contains("--temperature") && sampling.temperature > 0;
  const bool said_greedy = !reading.get("do_sample").is_null() && !reading.samples();
  if (said_greedy && hot) {
    throw UsageError(str("--temperature ", sampling.temperature,
                         " contradicts do_sample = false of ", reading.file()),
                     "give the value in one place; without --compat deepspeed-chat the flag alone "
                     "counts");
  }
  const auto temperature = reading.number<double>("temperature", 0, kAny);
  const auto top_k = reading.number<int64_t>("top_k", 0, kAny);
  const auto top_p = reading.number<double>("top_p", 0, 1);
  sampling.min_new_tokens = reading.number<int64_t>("min_new_tokens", 0, kAny).value_or(0);
  std::vector<std::string> lines;
  for (const char* key : {"max_length", "max_new_tokens"}) {
    if (reading.get(key).is_number()) {
      lines.push_back(str(reading.file(), ": ", key, " = ", reading.get(key).dump(),
                          " has no effect: --max-answer-seq-len says it"));
    }
  }
  if (!reading.samples() && !hot) {
    for (const char* flag : {"--top-k", "--top-p"}) {
      if (flags.contains(flag)) {
        throw UsageError(str(flag, " has no effect: sampling is greedy, as ", reading.file(),
                             " does not set do_sample"),
                         "pass --temperature as well, or set do_sample in the file");
      }
    }
    sampling = {.temperature = 0, .min_new_tokens = sampling.min_new_tokens};
    lines.push_back(str("sampling: greedy, as ", reading.file(), " does not set do_sample"));
    return lines;
  }
  sampling.temperature = agreed(reading, "temperature", temperature, "--temperature",
                                flags.contains("--temperature"), sampling.temperature, 1.0);
  sampling.top_k = agreed(reading, "top_k", top_k, "--top-k", flags.contains("--top-k"),
                          sampling.top_k, kTopKOfTransformers);
  sampling.top_p =
      agreed(reading, "top_p", top_p, "--top-p", flags.contains("--top-p"), sampling.top_p, 1.0);
  lines.push_back(str("sampling: temperature ", sampling.temperature, ", top-k ", sampling.top_k,
                      ", top-p ", sampling.top_p, " (", reading.file(), ")"));
  return lines;
}

std::string unused_sampling(const std::string& model_dir) {
  const Reading reading(model_dir);
  return reading.samples()
             ? str(reading.file(), " asks for sampling: it is greedy without --temperature")
             : "";
}

}  // namespace reknit
