#include "reknit/config/deepspeed.h"

#include "reknit/config/deepspeed_checks.h"
#include "reknit/config/deepspeed_keys.h"
#include "reknit/config/json_path.h"
#include "reknit/config/json_text.h"

#include <cmath>
#include <set>

namespace reknit {
namespace {

using nlohmann::json;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string join(std::string_view parent, const std::string& name) {
  return parent.empty() ? name : str(parent, ".", name);
}

/// On, for a section that Reknit does not look into.
bool switched_on(const json& section) {
  if (!section.is_object()) {
    return !section.is_null() && section != json(false);
  }
  if (section.contains("enabled")) {
    return section.at("enabled") != json(false);
  }
  bool any_switch = false;
  for (const json& value : section) {
    if (value.is_object()) {
      if (switched_on(value)) {
        return true;
      }
      any_switch = true;
    }
  }
  return !any_switch && !section.empty();
}

class Reader {
 public:
  Reader(const json& root, const std::string& file,
         const std::map<std::string, std::string>& origins, ConfigReading& out)
      : root_(root), file_(file), origins_(origins), out_(out) {}

  void run() {
    walk(root_, "");
    out_.config.batch.global_from = origin("train_batch_size");
    out_.config.batch.micro_from = origin("train_micro_batch_size_per_gpu");
    out_.config.batch.accumulation_from = origin("gradient_accumulation_steps");
  }

  bool batch_is_readable() const { return batch_is_readable_; }

 private:
  std::string origin(const std::string& path) const {
    const auto found = origins_.find(path);
    return found == origins_.end() ? file_ : found->second;
  }

  void report(Severity severity, const std::string& path, const json& value, std::string text,
              std::string help = "") {
    const auto found = origins_.find(path);
    out_.findings.push_back(
        {severity, path,
         show_json(value) + (found == origins_.end() ? "" : str(" (", found->second, ")")),
         std::move(text), std::move(help)});
  }

  void wrong(const std::string& path, const json& value, std::string text, std::string help = "") {
    report(Severity::kError, path, value, std::move(text), std::move(help));
  }

  void walk(const json& object, std::string_view parent) {
    for (const auto& [name, value] : object.items()) {
      const std::string path = join(parent, name);
      const KeySpec* key = find_key(path);
      if (key == nullptr) {
        const std::string near = nearest_key(path);
        wrong(path, value, name.empty() ? "there is no key without a name" : "there is no such key",
              near.empty() ? "" : str("did you mean ", near, "?"));
      } else if (key->kind == KeyKind::kSection) {
        section(*key, path, value);
      } else {
        leaf(*key, path, value);
      }
    }
  }

  void section(const KeySpec& key, const std::string& path, const json& value) {
    if (value.is_object()) {
      walk(value, key.path);
    } else if (!value.is_null()) {
      wrong(path, value, "must be an object, { ... }");
    }
  }

  void leaf(const KeySpec& key, const std::string& path, const json& value) {
    if (value == json("auto") && key.kind != KeyKind::kOpenSection) {
      filled(key, path, value);
      return;
    }
    if (value.is_null() && key.default_json == "null") {
      return;
    }
    if (key.kind == KeyKind::kOpenSection) {
      if (switched_on(value)) {
        judge(key, path, value);
      }
      return;
    }
    if (const std::string problem = mistake(key, value); !problem.empty()) {
      if (key.path.starts_with("train_") || key.path == "gradient_accumulation_steps") {
        batch_is_readable_ = false;
      }
      wrong(path, value, problem, remedy(key, value));
      return;
    }
    if (key.fate == KeyFate::kImplemented) {
      store(key, value);
    } else if (!is_default(key, value)) {
      judge(key, path, value);
    }
  }

  /// "auto": what another program would have filled in.
  void filled(const KeySpec& key, const std::string& path, const json& value) {
    if (key.path == "train_batch_size" || key.path == "train_micro_batch_size_per_gpu" ||
        key.path == "gradient_accumulation_steps") {
      batch_is_readable_ = false;
      wrong(path, value, "nothing fills in \"auto\" here",
            str("write a number for ", path, ", or leave it out and pass --batch"));
      return;
    }
    report(Severity::kNote, path, value,
           key.default_json == "null" ? "taken as not given"
                                      : str("taken as the default, ", key.default_json));
  }

  void judge(const KeySpec& key, const std::string& path, const json& value) {
    if (key.fate == KeyFate::kRefused) {
      wrong(path, value, str("is not supported: ", key.reason));
    } else if (!section_is_off(key)) {
      report(Severity::kNote, path, value, str("has no effect here: ", key.reason));
    }
  }

  /// The details of what is switched off deserve no note.
  bool section_is_off(const KeySpec& key) const {
    const std::string parent(key.parent());
    if (key.name() == "enabled" || parent.empty()) {
      return false;
    }
    if (find_key(parent + ".enabled") != nullptr) {
      const json* on = find_path(root_, parent + ".enabled");
      return on == nullptr || *on != json(true);
    }
    return find_key(parent + ".device") != nullptr;  // offload: refused when on
  }

  static bool is_default(const KeySpec& key, const json& value) {
    const json standard = json::parse(key.default_json);
    if (value.is_string() && standard.is_string()) {
      return lower(value.get<std::string>()) == lower(standard.get<std::string>());
    }
    return same_value(value, standard);
  }

  static bool is_whole(const json& value) {
    if (value.is_number_float()) {
      const double number = value.get<double>();
      return std::trunc(number) == number && std::abs(number) < 0x1p63;
    }
    return value.is_number_integer() &&
           !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
  }

  static std::string range(const KeySpec& key, const json& value) {
    const double number = value.get<double>();
    if (number < key.min) {
      return str("must be ", key.min, " or more");
    }
    return number > key.max ? str("must be ", key.max, " or less") : "";
  }

  /// What is wrong with a value's type or range; empty if nothing.
  static std::string mistake(const KeySpec& key, const json& value) {
    switch (key.kind) {
      case KeyKind::kBool:
        return value.is_boolean() ? "" : "must be true or false";
      case KeyKind::kInteger:
        return is_whole(value) ? range(key, value) : "must be a whole number";
      case KeyKind::kNumber:
        return value.is_number() && std::isfinite(value.get<double>()) ? range(key, value)
                                                                       : "must be a finite number";
      case KeyKind::kText:
        return value.is_string() ? "" : "must be a text";
      case KeyKind::kChoice:
        return value.is_string() && !choice(key, value.get<std::string>()).empty()
                   ? ""
                   : str("must be one of ", key.choices);
      case KeyKind::kNumberList:
        return list_mistake(key, value);
      case KeyKind::kTextList:
        return text_list_mistake(key, value);
      default:
        return "";
    }
  }

  /// Of any length; each one of the choices, if there are any.
  static std::string text_list_mistake(const KeySpec& key, const json& value) {
    if (!value.is_array()) {
      return "must be a list";
    }
    for (const json& item : value) {
      if (!item.is_string()) {
        return "must be a list of texts";
      }
      if (!key.choices.empty() && choice(key, item.get<std::string>()).empty()) {
        return str("each must be one of ", key.choices);
      }
    }
    return "";
  }

  static std::string list_mistake(const KeySpec& key, const json& value) {
    const size_t wanted = json::parse(key.default_json).size();
    if (!value.is_array() || value.size() != wanted) {
      return str("must be a list of ", wanted, " numbers");
    }
    for (const json& item : value) {
      if (!item.is_number()) {
        return str("must be a list of ", wanted, " numbers");
      }
      if (item.get<double>() < key.min || item.get<double>() >= key.max) {
        return str("each must be at least ", key.min, " and below ", key.max);
      }
    }
    return "";
  }

  static std::string remedy(const KeySpec& key, const json& value) {
    if (key.kind == KeyKind::kInteger && value.is_number_float()) {
      return str("write ", key.name(), " ", std::llround(std::min(value.get<double>(), 9e18)),
                 " (a rule such as 0.9 * hidden^2 can leave a fraction)");
    }
    if (key.kind == KeyKind::kChoice && value.is_string()) {
      const std::string near = nearest_word(value.get<std::string>(), key.choices);
      return near.empty() ? "" : str("did you mean ", near, "?");
    }
    return "";
  }

  /// The declared spelling of a choice; empty if it is none of them.
  static std::string choice(const KeySpec& key, const std::string& value) {
    std::string_view rest = key.choices;
    while (!rest.empty()) {
      const size_t bar = rest.find('|');
      if (lower(rest.substr(0, bar)) == lower(value)) {
        return std::string(rest.substr(0, bar));
      }
      rest = bar == std::string_view::npos ? std::string_view() : rest.substr(bar + 1);
    }
    return "";
  }

  void store(const KeySpec& key, const json& value) {
    const KeyTarget target = key.target(out_.config);
    const bool is_choice = key.kind == KeyKind::kChoice;
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    if (auto p = std::get_if<bool*>(&target)) {
      **p = value.get<bool>();
    } else if (auto p = std::get_if<std::optional<bool>*>(&target)) {
      **p = value.get<bool>();
    } else if (auto p = std::get_if<int64_t*>(&target)) {
      **p = value.get<int64_t>();
    } else if (auto p = std::get_if<double*>(&target)) {
      **p = value.get<double>();
    } else if (auto p = std::get_if<std::string*>(&target)) {
      **p = is_choice ? choice(key, text) : text;
    } else if (auto p = std::get_if<std::optional<int64_t>*>(&target)) {
      **p = value.get<int64_t>();
    } else if (auto p = std::get_if<std::optional<double>*>(&target)) {
      **p = value.get<double>();
    } else if (auto p = std::get_if<std::optional<std::string>*>(&target)) {
      **p = is_choice ? choice(key, text) : text;
    } else if (auto p = std::get_if<std::vector<double>*>(&target)) {
      **p = value.get<std::vector<double>>();
    } else if (auto p = std::get_if<std::vector<std::string>*>(&target)) {
      **p = value.get<std::vector<std::string>>();
    }
  }

  const json& root_;
  const std::string& file_;
  const std::map<std::string, std::string>& origins_;
  ConfigReading& out_;
  bool batch_is_readable_ = true;
};

/// One old or other name. Returns false if it is not there.
bool rename(json& config, const KeyAlias& alias, Findings& findings) {
  const json* found = find_path(config, alias.path);
  if (found == nullptr) {
    return false;
  }
  json value = *found;
  if (find_path(config, alias.replacement) != nullptr) {
    findings.push_back({Severity::kError, std::string(alias.path), show_json(value),
                        str("is another name of ", alias.replacement, ", which is given as well"),
                        str("keep ", alias.replacement)});
    erase_path(config, alias.path);
    return true;
  }
  if (alias.replacement.ends_with(".device") && value.is_boolean()) {
    value = value.get<bool>() ? "cpu" : "none";
  }
  if (alias.deprecated) {
    findings.push_back({Severity::kNote, std::string(alias.path), show_json(*found),
                        str("is an old name; read as ", alias.replacement, " = ", show_json(value)),
                        ""});
  }
  erase_path(config, alias.path);
  set_path(config, alias.replacement, std::move(value));
  return true;
}

}  // namespace

const char* to_string(Precision precision) {
  return precision == Precision::kFp16 ? "fp16" : precision == Precision::kBf16 ? "bf16" : "fp32";
}

json modern_names(const json& given, Findings& findings) {
  json config = given;
  if (!config.is_object()) {
    return config;
  }
  if (const json* zero = find_path(config, "zero_optimization");
      zero != nullptr && zero->is_boolean()) {
    const int stage = zero->get<bool>() ? 1 : 0;
    findings.push_back({Severity::kNote, "zero_optimization", show_json(*zero),
                        str("is an old form; read as zero_optimization.stage = ", stage), ""});
    config["zero_optimization"] = {{"stage", stage}};
  }
  for (const KeyAlias& alias : deepspeed_aliases()) {
    const size_t dot = alias.replacement.rfind('.');
    const json* section = dot == std::string_view::npos
                              ? nullptr
                              : find_path(config, alias.replacement.substr(0, dot));
    if (section == nullptr || section->is_object() || section->is_null()) {
      rename(config, alias, findings);
    }
  }
  return config;
}

ConfigReading read_deepspeed(const json& given, const RunShape& shape, const std::string& file,
                             const std::map<std::string, std::string>& origins) {
  ConfigReading out;
  const json config = modern_names(given, out.findings);
  if (!config.is_object()) {
    out.findings.push_back({Severity::kError, "", "",
                            str(file, " holds ", show_json(config), ", not an object, { ... }"),
                            ""});
    return out;
  }
  Reader reader(config, file, origins, out);
  reader.run();
  check_precision(config, out);
  check_zero(shape, out);
  check_optimizer(config, out);
  check_scheduler(config, out);
  const BatchRequest& batch = out.config.batch;
  if (reader.batch_is_readable() &&
      (shape.needs_batch || batch.global || batch.micro || batch.accumulation)) {
    out.batch = solve_batch(batch, shape.ranks, shape.ranks_from, out.findings);
  }
  return out;
}

}  // namespace reknit
