#include "reknit/config/deepspeed_keys.h"

#include "reknit/base/error.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <string>
#include <unordered_map>

namespace reknit {
namespace {

constexpr KeyAlias kAliases[] = {
    {"bfloat16", "bf16", false},
    {"zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size",
     false},
    {"zero_optimization.param_persistence_threshold",
     "zero_optimization.stage3_param_persistence_threshold", false},
    {"zero_optimization.model_persistence_threshold",
     "zero_optimization.stage3_model_persistence_threshold", false},
    {"zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters",
     false},
    {"zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance", false},
    {"zero_optimization.gather_16bit_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save", false},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization.module_granularity_threshold",
     "zero_optimization.stage3_module_granularity_threshold", false},
    {"zero_optimization.use_all_reduce_for_fetch_params",
     "zero_optimization.stage3_use_all_reduce_for_fetch_params", false},
    {"zero_optimization.allgather_sequential", "zero_optimization.stage3_allgather_sequential",
     false},
    {"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device"},
    {"zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device"},
    {"zero_optimization.cpu_offload_use_pin_memory",
     "zero_optimization.offload_optimizer.pin_memory"},
};

std::string_view last(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

std::string_view before_last(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

const std::vector<KeySpec>& deepspeed_keys() {
  static const std::vector<KeySpec> keys = [] {
    std::vector<KeySpec> all;
    for (const auto& part : {general_keys(), zero_keys(), training_keys()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return keys;
}

std::span<const KeyAlias> deepspeed_aliases() {
  return kAliases;
}

const KeySpec* find_key(std::string_view path) {
  static const std::unordered_map<std::string_view, const KeySpec*> index = [] {
    std::unordered_map<std::string_view, const KeySpec*> map;
    for (const KeySpec& key : deepspeed_keys()) {
      map.emplace(key.path, &key);
    }
    return map;
  }();
  const auto found = index.find(path);
  return found == index.end() ? nullptr : found->second;
}

std::string nearest_key(std::string_view path) {
  const std::string_view name = last(path);
  if (name.size() > 100) {
    return "";  // no key's name is near that long
  }
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  std::string_view nearest;
  for (const KeySpec& key : deepspeed_keys()) {
    if (key.parent() == before_last(path)) {
      const size_t distance = edit_distance(name, key.name());
      if (distance < best) {
        best = distance;
        nearest = key.path;
      }
    }
  }
  if (!nearest.empty() && best <= 2) {
    return std::string(nearest);
  }
  for (const KeySpec& key : deepspeed_keys()) {
    if (key.name() == name && key.name() != "enabled") {
      return std::string(key.path);
    }
  }
  return std::string(nearest);
}

std::string nearest_word(std::string_view word, std::string_view words) {
  const auto lower = [](std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    return out;
  };
  if (word.size() > 100) {
    return "";  // no word is near that long
  }
  size_t best = std::max<size_t>(2, word.size() / 3) + 1;
  std::string nearest;
  while (!words.empty()) {
    const size_t bar = words.find('|');
    const size_t distance = edit_distance(lower(word), lower(words.substr(0, bar)));
    if (distance < best) {
      best = distance;
      nearest = words.substr(0, bar);
    }
    words = bar == std::string_view::npos ? std::string_view() : words.substr(bar + 1);
  }
  return nearest;
}

std::string deepspeed_keys_markdown() {
  std::string out = "| key | default | meaning | here |\n|---|---|---|---|\n";
  for (const KeySpec& key : deepspeed_keys()) {
    const std::string_view fate = key.fate == KeyFate::kImplemented ? "yes"
                                  : key.fate == KeyFate::kNoMeaning ? "no effect: "
                                                                    : "refused: ";
    out += str("| `", key.path, "` | ", key.default_json == "null" ? "" : key.default_json, " | ",
               key.sentence, " | ", fate, key.reason, " |\n");
  }
  out += "\n| other name | read as |\n|---|---|\n";
  for (const KeyAlias& alias : deepspeed_aliases()) {
    out += str("| `", alias.path, "`", alias.deprecated ? " (old)" : "", " | `", alias.replacement,
               "` |\n");
  }
  return out;
}

}  // namespace reknit
