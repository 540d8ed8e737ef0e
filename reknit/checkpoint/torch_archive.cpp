// A file of torch.save: the tree of its pickle, and the tensors in it.
#include "reknit/checkpoint/torch_archive.h"

#include <algorithm>
#include <array>

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"
#include "reknit/checkpoint/zip_archive.h"

namespace reknit {
namespace {

constexpr size_t kMaxDims = 64;
constexpr int kMaxWrappers = 4;  // a parameter around a tensor is one

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 10> kStorages{{
    {"torch.DoubleStorage", at::kDouble},
    {"torch.FloatStorage", at::kFloat},
    {"torch.HalfStorage", at::kHalf},
    {"torch.BFloat16Storage", at::kBFloat16},
    {"torch.LongStorage", at::kLong},
    {"torch.IntStorage", at::kInt},
    {"torch.ShortStorage", at::kShort},
    {"torch.CharStorage", at::kChar},
    {"torch.ByteStorage", at::kByte},
    {"torch.BoolStorage", at::kBool},
}};

struct Storage {
  at::ScalarType dtype;
  int64_t elements;
  int64_t offset;  // bytes from the start of the file
};

// ('storage', storage type, key, device, elements)
Storage read_storage(const PickleValue& value, const TorchArchive& archive,
                     const std::string& what) {
  const bool shaped = value.kind == PickleKind::kPersistent &&
                      value.items[0]->kind == PickleKind::kTuple &&
                      value.items[0]->items.size() >= 5;
  require<InputError>(shaped, what, " has no storage that is understood");
  const auto& fields = value.items[0]->items;
  require<InputError>(fields[0]->text == "storage" && fields[1]->kind == PickleKind::kGlobal &&
                          fields[2]->kind == PickleKind::kText &&
                          fields[4]->kind == PickleKind::kInt && fields[4]->number >= 0,
                      what, " has no storage that is understood");
  const auto type = std::find_if(kStorages.begin(), kStorages.end(),
                                 [&](const auto& entry) { return entry.first == fields[1]->text; });
  require<InputError>(type != kStorages.end(), what, " has a storage of type ", fields[1]->text);
  const std::string key = str("data/", fields[2]->text);
  const ZipEntry* entry = archive.find(key);
  require<InputError>(entry != nullptr, what, " has its values in ", key,
                      ", which the file does not contain");
  const int64_t elements = fields[4]->number;
  const int64_t bytes =
      checked_bytes({elements}, static_cast<int64_t>(c10::elementSize(type->second)), what);
  require<InputError>(bytes <= entry->size, what, " has a storage of ", bytes, " bytes, but ", key,
                      " holds ", entry->size);
  return {type->second, elements, entry->offset};
}

std::vector<int64_t> read_sizes(const PickleValue* value, const std::string& what) {
  if (value->kind == PickleKind::kCall && value->text == "torch.Size" && value->items.size() == 1) {
    value = value->items[0];
  }
  require<InputError>(value->kind == PickleKind::kTuple && value->items.size() <= kMaxDims, what,
                      " has sizes or strides that are no tuple of at most ", kMaxDims);
  std::vector<int64_t> sizes;
  for (const PickleValue* item : value->items) {
    require<InputError>(item->kind == PickleKind::kInt && item->number >= 0, what,
                        " has a size or stride that is no count");
    sizes.push_back(item->number);
  }
  return sizes;
}

// The tensor below the parameters around it, or null if it is none.
const PickleValue* unwrap(const PickleValue* value) {
  for (int i = 0; i < kMaxWrappers && value->kind == PickleKind::kCall; ++i) {
    if (value->text == "torch._utils._rebuild_tensor_v2") {
      return value;
    }
    if (value->text == "torch.Size" || value->items.empty()) {
      return nullptr;
    }
    value = value->items[0];
  }
  return nullptr;
}

// (storage, offset, sizes, strides, requires_grad, hooks, bits)
StoredTensor read_tensor(const std::string& name, const PickleValue& call,
                         const TorchArchive& archive, const std::string& path) {
  const std::string what = str("tensor ", name, " of ", path);
  require<InputError>(call.items.size() >= 4 && call.items[1]->kind == PickleKind::kInt, what,
                      " is described by ", call.items.size(), " arguments that are not understood");
  // The seventh holds bits such as "negated" that change what the bytes mean.
  const bool plain = call.items.size() <= 6 || call.items[6]->items.empty();
  require<InputError>(plain, what, " is a lazily negated or conjugated view");
  const Storage storage = read_storage(*call.items[0], archive, what);
  const int64_t first = call.items[1]->number;
  StoredTensor tensor{{name, storage.dtype, read_sizes(call.items[2], what)}, 0, {}};
  tensor.strides = read_sizes(call.items[3], what);
  const std::vector<int64_t>& shape = tensor.info.shape;
  require<InputError>(shape.size() == tensor.strides.size(), what, " has ", shape.size(),
                      " sizes and ", tensor.strides.size(), " strides");
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(storage.dtype));
  const int64_t bytes = checked_bytes(shape, element_bytes, what);
  __extension__ using Wide = __int128;  // sums of products of 63-bit numbers
  Wide end = static_cast<Wide>(first) + (bytes == 0 ? 0 : 1);
  for (size_t i = 0; i < shape.size() && bytes > 0; ++i) {
    end += static_cast<Wide>(shape[i] - 1) * tensor.strides[i];
  }
  require<InputError>(first >= 0 && end <= storage.elements, what, " with shape ",
                      shape_text(shape), ", strides ", shape_text(tensor.strides), " and offset ",
                      first, " leaves its storage of ", storage.elements, " elements");
  tensor.offset = storage.offset + first * element_bytes;
  return tensor;
}

void refuse_other_forms(const MappedFile& file) {
  refuse_lfs_stub(file);
  if (looks_like_zip(file.bytes())) {
    return;
  }
  // The legacy form begins with a pickled magic number of ten bytes.
  constexpr std::string_view kLegacy("\x80\x02\x8a\x0a", 4);
  if (file.bytes().starts_with(kLegacy)) {
    throw InputError(
        str(file.path(), " is in the form that torch.save wrote before version 1.6"),
        str("convert it: python3 -c \"import torch; p = '", file.path(),
            "'; torch.save(torch.load(p, map_location='cpu', weights_only=True), p)\""));
  }
  throw InputError(
      str(file.path(), " is no file of torch.save: it does not begin like a zip ", "archive"));
}

}  // namespace

TorchArchive::TorchArchive(std::shared_ptr<const MappedFile> file, PickleNames names)
    : file_(std::move(file)) {
  refuse_other_forms(*file_);
  entries_ = read_zip_entries(*file_);
  constexpr std::string_view kPickle = "/data.pkl";
  for (const ZipEntry& entry : entries_) {
    if (entry.name.ends_with(kPickle) &&
        entry.name.find('/') + kPickle.size() == entry.name.size()) {
      folder_ = entry.name.substr(0, entry.name.size() - kPickle.size() + 1);
    }
    by_name_.emplace(entry.name, &entry);
  }
  require<InputError>(!folder_.empty(), path(),
                      " is a zip archive, but not of torch.save: it has no data.pkl");
  if (const ZipEntry* order = find("byteorder")) {
    require<InputError>(bytes(*order) == "little", path(), " has the byte order ",
                        bytes(*order).substr(0, 16), "; only little is read");
  }
  pickle_ = std::make_unique<Pickle>(bytes(*find("data.pkl")), str("data.pkl of ", path()), names);
}

const std::string& TorchArchive::path() const {
  return file_->path();
}

const ZipEntry* TorchArchive::find(const std::string& name) const {
  const auto found = by_name_.find(folder_ + name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::string_view TorchArchive::bytes(const ZipEntry& entry) const {
  return file_->bytes().substr(static_cast<size_t>(entry.offset), static_cast<size_t>(entry.size));
}

std::optional<StoredTensor> TorchArchive::tensor(const std::string& name,
                                                 const PickleValue& value) const {
  const PickleValue* call = unwrap(&value);
  return call == nullptr ? std::nullopt : std::optional(read_tensor(name, *call, *this, path()));
}

at::Tensor TorchArchive::read(const StoredTensor& tensor) const {
  return tensor_over(file_, tensor.offset, tensor.info.dtype, tensor.info.shape, tensor.strides);
}

}  // namespace reknit
