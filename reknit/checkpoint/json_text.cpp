// JSON as the model files of others use it, read strictly.
#include "reknit/checkpoint/json_text.h"

#include <nlohmann/json.hpp>

#include <set>

#include "reknit/base/error.h"
#include "reknit/base/json_problem.h"
#include "reknit/base/mapped_file.h"

namespace reknit {
namespace {

using Json = nlohmann::json;
constexpr size_t kMaxDepth = 64;

template <class Any>
Any parse(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  using Event = typename Any::parse_event_t;
  const auto watch = [&](int, Event event, Any& value) {
    if (event == Event::object_start || event == Event::array_start) {
      keys.emplace_back();
      require<InputError>(keys.size() <= kMaxDepth, where, " is nested deeper than ", kMaxDepth);
    } else if (event == Event::object_end || event == Event::array_end) {
      keys.pop_back();
    } else if (event == Event::key) {
      const bool fresh = keys.back().insert(value.template get_ref<const std::string&>()).second;
      require<InputError>(fresh, where, " names the key ", json_excerpt(nlohmann::json(value)),
                          " twice");
    }
    return true;
  };
  try {
    return Any::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    throw InputError(str(where, " is not valid JSON: ", json_problem(error)));
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  return parse<Json>(text, where);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where) {
  return parse<nlohmann::ordered_json>(text, where);
}

Json read_json_object(const std::string& path) {
  const auto file = MappedFile::open(path);
  refuse_lfs_stub(*file);
  Json value = parse_json(file->bytes(), path);
  require<InputError>(value.is_object(), path, " holds ", value.type_name(), ", not an object");
  return value;
}

std::string json_excerpt(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr size_t kMaxLength = 80;
  if (text.size() > kMaxLength) {
    text.resize(kMaxLength);
    text += "...";
  }
  return text;
}

}  // namespace reknit
