#include "reknit/config/settings.h"

#include "reknit/config/deepspeed.h"
#include "reknit/config/deepspeed_keys.h"
#include "reknit/config/json_path.h"
#include "reknit/config/json_text.h"

namespace reknit {
namespace {

using nlohmann::json;

/// Today's name of a path, section aliases included (bfloat16.enabled).
std::string modern_path(const std::string& path) {
  for (const KeyAlias& alias : deepspeed_aliases()) {
    if (path == alias.path || path.starts_with(str(alias.path, "."))) {
      return str(alias.replacement, path.substr(alias.path.size()));
    }
  }
  return path;
}

bool is_open(const json* value) {
  return value == nullptr || value->is_null() || *value == json("auto");
}

}  // namespace

Setting parse_set(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos) {
    throw UsageError(str("--set ", text, ": must be KEY=VALUE"),
                     "for example --set zero_optimization.stage=3");
  }
  const std::string raw = text.substr(equals + 1);
  json value = json::parse(raw, nullptr, false);
  if (value.is_discarded()) {
    value = raw;
  }
  return {text.substr(0, equals), std::move(value), "--set"};
}

ResolvedSettings resolve_settings(const json& file, const std::string& file_name,
                                  const std::vector<Setting>& overrides,
                                  const std::vector<Setting>& flags,
                                  const std::vector<Setting>& defaults, Findings& findings) {
  ResolvedSettings out;
  out.config = modern_names(file.is_null() ? json::object() : file, findings);
  if (!out.config.is_object()) {
    return out;
  }
  for (const Setting& setting : overrides) {
    const std::string path = modern_path(setting.path);
    const json* present = find_path(out.config, path);  // another --set may have replaced it
    if (out.origins.contains(path) && present != nullptr && !same_value(*present, setting.value)) {
      findings.push_back({Severity::kError, path, show_json(setting.value),
                          str("--set gives it twice; the other value is ", show_json(*present)),
                          ""});
      continue;
    }
    set_path(out.config, path, setting.value);
    out.origins[path] = setting.origin;
  }
  for (const Setting& flag : flags) {
    const std::string path = modern_path(flag.path);
    const json* present = find_path(out.config, path);
    if (is_open(present)) {
      set_path(out.config, path, flag.value);
      out.origins[path] = flag.origin;
    } else if (!same_value(*present, flag.value)) {
      const auto origin = out.origins.find(path);
      findings.push_back(
          {Severity::kError, path, show_json(*present),
           str("(", origin == out.origins.end() ? file_name : origin->second,
               ") contradicts the flag ", flag.origin, ", which says ", show_json(flag.value)),
           "give it in one place, or the same value in both"});
    }
  }
  for (const Setting& setting : defaults) {
    if (is_open(find_path(out.config, setting.path))) {
      set_path(out.config, setting.path, setting.value);
      out.origins[setting.path] = setting.origin;
    }
  }
  return out;
}

}  // namespace reknit
