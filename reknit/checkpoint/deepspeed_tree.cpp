#include "reknit/checkpoint/deepspeed_tree.h"

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"

#include <ATen/ATen.h>

#include <cmath>

namespace reknit {
namespace {

// A double tells all whole numbers up to here apart.
constexpr int64_t kWhole = 9'000'000'000'000'000;

}  // namespace

DeepSpeedFile::DeepSpeedFile(const std::string& path)
    : archive_(MappedFile::open(path), PickleNames::kDeepSpeed) {
  require<InputError>(root().kind == PickleKind::kDict, path,
                      " holds no dictionary: it is no file of a DeepSpeed checkpoint");
}

const PickleValue* DeepSpeedFile::find(const PickleValue& dict, std::string_view key) {
  if (dict.kind != PickleKind::kDict) {
    return nullptr;
  }
  const PickleValue* found = nullptr;  // a key that is set again counts as last set
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    if (dict.items[i]->kind == PickleKind::kText && dict.items[i]->text == key) {
      found = dict.items[i + 1];
    }
  }
  return found == nullptr || found->kind == PickleKind::kNone ? nullptr : found;
}

const PickleValue& DeepSpeedFile::get(const PickleValue& dict, std::string_view key) const {
  const PickleValue* found = find(dict, key);
  require<InputError>(found != nullptr, path(), " has no ", key,
                      ": it is no file of a DeepSpeed checkpoint that is known here");
  return *found;
}

const PickleValue& DeepSpeedFile::get(const PickleValue& dict, std::string_view key,
                                      PickleKind kind) const {
  const PickleValue& found = get(dict, key);
  require<InputError>(found.kind == kind, path(), " holds something unknown as ", key);
  return found;
}

int64_t DeepSpeedFile::integer(const PickleValue& value, std::string_view what) const {
  if (value.kind == PickleKind::kInt) {
    require<InputError>(value.number >= -kWhole && value.number <= kWhole, path(), " has ",
                        value.number, " as ", what);
    return value.number;
  }
  const bool enumeration = value.kind == PickleKind::kCall &&
                           value.text == "deepspeed.runtime.zero.config.ZeroStageEnum" &&
                           value.items.size() == 1 && value.items[0]->kind == PickleKind::kInt;
  if (enumeration) {
    return value.items[0]->number;
  }
  const double number = real(value, what);
  const bool whole = number >= -kWhole && number <= kWhole && number == std::floor(number);
  require<InputError>(whole, path(), " has ", number, " as ", what, ", which is no whole number");
  return static_cast<int64_t>(number);
}

double DeepSpeedFile::real(const PickleValue& value, std::string_view what) const {
  if (value.kind == PickleKind::kFloat) {
    return value.real;
  }
  if (value.kind == PickleKind::kInt) {
    return static_cast<double>(value.number);
  }
  const StoredTensor stored = tensor(value, std::string(what));
  require<InputError>(stored.info.numel() == 1, path(), " has a tensor of shape ",
                      shape_text(stored.info.shape), " as ", what, " instead of a number");
  return archive_.read(stored).to(at::kDouble).item<double>();
}

StoredTensor DeepSpeedFile::tensor(const PickleValue& value, const std::string& name) const {
  std::optional<StoredTensor> found = archive_.tensor(name, value);
  require<InputError>(found.has_value(), path(), " holds no tensor as ", name);
  return *std::move(found);
}

std::vector<StoredTensor> DeepSpeedFile::tensors(const PickleValue& list,
                                                 const std::string& name) const {
  require<InputError>(list.kind == PickleKind::kList || list.kind == PickleKind::kTuple, path(),
                      " holds no list as ", name);
  std::vector<StoredTensor> all;
  for (size_t i = 0; i < list.items.size(); ++i) {
    all.push_back(tensor(*list.items[i], str(name, " ", i)));
  }
  return all;
}

std::vector<int64_t> DeepSpeedFile::shape(const PickleValue& value, std::string_view what) const {
  const PickleValue* sizes = &value;
  if (value.kind == PickleKind::kCall && value.text == "torch.Size" && value.items.size() == 1) {
    sizes = value.items[0];
  }
  require<InputError>(sizes->kind == PickleKind::kTuple || sizes->kind == PickleKind::kList, path(),
                      " holds no shape for ", what);
  std::vector<int64_t> shape;
  for (const PickleValue* size : sizes->items) {
    require<InputError>(size->kind == PickleKind::kInt, path(), " holds no shape for ", what);
    shape.push_back(size->number);
  }
  checked_bytes(shape, sizeof(double), str("parameter ", what, " of ", path()));
  return shape;
}

}  // namespace reknit
