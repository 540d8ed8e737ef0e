// The safetensors format: a file of named tensors, read by mapping, written in place.
#include "reknit/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"
#include "reknit/checkpoint/json_text.h"

namespace reknit {
namespace {

using Json = nlohmann::json;
static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the format's own library
constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<const char*, at::ScalarType>, 10> kDtypes{{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
}};

at::ScalarType dtype_of(const std::string& name, const std::string& what) {
  for (const auto& [text, dtype] : kDtypes) {
    if (name == text) {
      return dtype;
    }
  }
  throw InputError(str(what, " has dtype ", json_excerpt(name), ", which is not supported"));
}

const char* name_of(const TensorInfo& info) {
  for (const auto& [text, dtype] : kDtypes) {
    if (info.dtype == dtype) {
      return text;
    }
  }
  throw UsageError(str("tensor ", info.name, " has dtype ", c10::toString(info.dtype),
                       ", which safetensors files do not hold here"));
}

std::string_view header_text(const MappedFile& file) {
  const std::string_view bytes = file.bytes();
  require<InputError>(bytes.size() >= kLengthBytes, file.path(), " is no safetensors file: it has ",
                      bytes.size(), " bytes");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  require<InputError>(length <= bytes.size() - kLengthBytes, file.path(),
                      " is no whole safetensors file: its header length is ", length, " and ",
                      bytes.size() - kLengthBytes, " bytes follow");
  require<InputError>(length <= kMaxHeader, file.path(), " has a header of ", length,
                      " bytes; the format allows ", kMaxHeader);
  const std::string_view header = bytes.substr(kLengthBytes, length);
  require<InputError>(header.starts_with('{'), file.path(),
                      " is no safetensors file: its header does not start with {");
  return header;
}

int64_t non_negative(const Json& value, const std::string& what, const char* field) {
  require<InputError>(value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX, what,
                      " has ", json_excerpt(value), " in ", field);
  return value.get<int64_t>();
}

struct Entry {
  TensorInfo info;
  int64_t begin;
  int64_t end;
};

Entry read_entry(const std::string& name, const Json& value, const std::string& path) {
  const std::string what = str("tensor ", name, " of ", path);
  require<InputError>(value.is_object(), what, " is described by ", json_excerpt(value),
                      ", not by an object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    require<InputError>(value.contains(key), what, " has no ", key);
  }
  for (const auto& [key, unused] : value.items()) {
    require<InputError>(key == "dtype" || key == "shape" || key == "data_offsets", what,
                        " has the unknown field ", json_excerpt(key));
  }
  const Json& dtype = value["dtype"];
  require<InputError>(dtype.is_string(), what, " has dtype ", json_excerpt(dtype));
  const Json& shape = value["shape"];
  require<InputError>(shape.is_array() && shape.size() <= 64, what, " has shape ",
                      json_excerpt(shape));
  const Json& offsets = value["data_offsets"];
  require<InputError>(offsets.is_array() && offsets.size() == 2, what, " has data_offsets ",
                      json_excerpt(offsets));
  Entry entry{{name, dtype_of(dtype.get_ref<const std::string&>(), what), {}}, 0, 0};
  for (const Json& size : shape) {
    entry.info.shape.push_back(non_negative(size, what, "shape"));
  }
  entry.begin = non_negative(offsets[0], what, "data_offsets");
  entry.end = non_negative(offsets[1], what, "data_offsets");
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(entry.info.dtype));
  const int64_t bytes = checked_bytes(entry.info.shape, element_bytes, what);
  require<InputError>(entry.begin <= entry.end && entry.end - entry.begin == bytes, what,
                      " has data_offsets [", entry.begin, ", ", entry.end, "), but ",
                      c10::toString(entry.info.dtype), shape_text(entry.info.shape), " takes ",
                      bytes, " bytes");
  return entry;
}

// The tensors must lie end to end over the `size` bytes behind the header.
void check_cover(const std::vector<Entry>& entries, int64_t size, const std::string& path) {
  int64_t covered = 0;
  for (const Entry& entry : entries) {
    require<InputError>(entry.begin == covered, "tensor ", entry.info.name, " of ", path,
                        entry.begin < covered ? " overlaps its neighbour: it begins at "
                                              : " leaves a gap: it begins at ",
                        entry.begin, " and the tensor before it ends at ", covered);
    covered = entry.end;
  }
  require<InputError>(covered == size, path, " holds ", size,
                      " bytes of data, but its header says ", covered);
}

std::vector<Entry> read_header(const Json& header, const std::string& path,
                               std::map<std::string, std::string>* metadata) {
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != kMetadata) {
      entries.push_back(read_entry(name, value, path));
      continue;
    }
    require<InputError>(value.is_object(), kMetadata, " of ", path, " is ", json_excerpt(value));
    for (const auto& [key, text] : value.items()) {
      require<InputError>(text.is_string(), kMetadata, " of ", path, " maps ", json_excerpt(key),
                          " to ", json_excerpt(text), ", which is no text");
      metadata->emplace(key, text.get<std::string>());
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  return entries;
}

// Large elements first, so that every tensor is aligned to its element.
std::vector<size_t> write_order(const std::vector<TensorInfo>& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return c10::elementSize(tensors[a].dtype) > c10::elementSize(tensors[b].dtype);
  });
  return order;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path)
    : SafetensorsFile(MappedFile::open(path)) {}

SafetensorsFile::SafetensorsFile(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {
  refuse_lfs_stub(*file_);
  const std::string_view text = header_text(*file_);
  const Json header = parse_json(text, str("the header of ", file_->path()));
  const auto start = static_cast<int64_t>(kLengthBytes + text.size());
  std::vector<Entry> entries = read_header(header, file_->path(), &metadata_);
  check_cover(entries, static_cast<int64_t>(file_->bytes().size()) - start, file_->path());
  for (Entry& entry : entries) {
    index_.emplace(entry.info.name, tensors_.size());
    offsets_.push_back(start + entry.begin);
    tensors_.push_back(std::move(entry.info));
  }
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const auto found = index_.find(name);
  require<InputError>(found != index_.end(), file_->path(), " has no tensor ", name);
  return tensor_over(file_, offsets_[found->second], tensors_[found->second]);
}

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::move(path)) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    header[kMetadata] = metadata;
  }
  int64_t end = 0;
  for (const size_t i : write_order(tensors)) {
    const TensorInfo& info = tensors[i];
    const int64_t begin = end;
    end += info.bytes();
    header[info.name] = {
        {"dtype", name_of(info)}, {"shape", info.shape}, {"data_offsets", {begin, end}}};
    const bool fresh = places_.emplace(info.name, Place{info, begin, false}).second;
    REKNIT_INVARIANT(fresh && info.name != kMetadata, "the name ", info.name,
                     " cannot be written (again) to ", file_.path());
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  char prefix[kLengthBytes];
  std::memcpy(prefix, &length, kLengthBytes);
  file_.write(std::string_view(prefix, kLengthBytes));
  file_.write(text);
  for (auto& [name, place] : places_) {
    place.offset += static_cast<int64_t>(kLengthBytes + length);
  }
}

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const auto found = places_.find(name);
  REKNIT_INVARIANT(found != places_.end() && !found->second.written, "tensor ", name,
                   " was not announced to ", file_.path(), " or comes twice");
  Place& place = found->second;
  REKNIT_INVARIANT(tensor.scalar_type() == place.info.dtype && tensor.sizes() == place.info.shape,
                   "tensor ", name, " of ", file_.path(), " was announced as ",
                   c10::toString(place.info.dtype), shape_text(place.info.shape), " and comes as ",
                   c10::toString(tensor.scalar_type()), shape_text(tensor.sizes().vec()));
  const at::Tensor host = tensor.detach().to(at::kCPU).contiguous();
  file_.write_at(place.offset, {static_cast<const char*>(host.const_data_ptr()), host.nbytes()});
  place.written = true;
}

void SafetensorsWriter::commit() {
  for (const auto& [name, place] : places_) {
    REKNIT_INVARIANT(place.written, "tensor ", name, " of ", file_.path(), " was never written");
  }
  file_.commit();
}

void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorInfo> infos;
  infos.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    infos.push_back(info_of(name, tensor));
  }
  SafetensorsWriter writer(path, std::move(infos), metadata);
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, tensor);
  }
  writer.commit();
}

}  // namespace reknit
