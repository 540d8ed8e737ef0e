#include "reknit/config/json_path.h"

#include "reknit/base/error.h"
#include "reknit/config/json_text.h"

namespace reknit {

using nlohmann::json;

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts;
  while (true) {
    const size_t dot = path.find('.');
    parts.emplace_back(path.substr(0, dot));
    if (dot == std::string_view::npos) {
      return parts;
    }
    path.remove_prefix(dot + 1);
  }
}

const json* find_path(const json& root, std::string_view path) {
  const json* at = &root;
  for (const std::string& part : split_path(path)) {
    if (!at->is_object() || !at->contains(part)) {
      return nullptr;
    }
    at = &at->at(part);
  }
  return at;
}

void set_path(json& root, std::string_view path, json value) {
  json* at = &root;
  for (const std::string& part : split_path(path)) {
    if (at->is_null()) {
      *at = json::object();
    }
    if (!at->is_object()) {
      throw UsageError(str("cannot set ", path, ": ", show_json(*at), " is in the way of ", part),
                       "a section must be an object");
    }
    at = &(*at)[part];
  }
  *at = std::move(value);
}

void erase_path(json& root, std::string_view path) {
  json* at = &root;
  const std::vector<std::string> parts = split_path(path);
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (!at->is_object() || !at->contains(parts[i])) {
      return;
    }
    at = &at->at(parts[i]);
  }
  if (at->is_object()) {
    at->erase(parts.back());
  }
}

bool same_value(const json& a, const json& b) {
  if (a.is_number() && b.is_number()) {
    return a.get<double>() == b.get<double>();
  }
  return a == b;
}

}  // namespace reknit
