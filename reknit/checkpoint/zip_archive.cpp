// Where the entries of a zip archive lie, for archives that store without packing.
#include "reknit/checkpoint/zip_archive.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "reknit/base/error.h"
#include "reknit/base/mapped_file.h"

namespace reknit {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// Signatures and fixed sizes of the records of the format.
constexpr uint32_t kLocal = 0x04034b50;
constexpr uint64_t kLocalBytes = 30;
constexpr uint32_t kCentral = 0x02014b50;
constexpr uint64_t kCentralBytes = 46;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint64_t kEndBytes = 22;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint32_t kLocator64 = 0x07064b50;
constexpr uint64_t kLocator64Bytes = 20;
constexpr uint64_t kMaxComment = 0xffff;
constexpr uint32_t kIn64 = 0xffffffff;  // the value is in the zip64 extra field
constexpr uint16_t kExtra64 = 0x0001;

class Reader {
 public:
  explicit Reader(const MappedFile& file) : file_(file) {}

  uint64_t size() const { return file_.bytes().size(); }
  const std::string& path() const { return file_.path(); }

  std::string_view bytes(uint64_t at, uint64_t count) const {
    require<InputError>(at <= size() && count <= size() - at, path(),
                        " is a damaged zip archive: a record at byte ", at, " of ", count,
                        " bytes leaves the ", size(), " bytes of the file");
    return file_.bytes().substr(at, count);
  }

  template <class T>
  T number(uint64_t at) const {
    T value;
    std::memcpy(&value, bytes(at, sizeof(T)).data(), sizeof(T));
    return value;
  }

 private:
  const MappedFile& file_;
};

struct Directory {
  uint64_t count;
  uint64_t offset;
};

uint64_t find_end(const Reader& reader) {
  if (reader.size() >= kEndBytes) {
    const uint64_t last = reader.size() - kEndBytes;
    const uint64_t first = last > kMaxComment ? last - kMaxComment : 0;
    for (uint64_t at = last + 1; at-- > first;) {
      if (reader.number<uint32_t>(at) == kEnd &&
          at + kEndBytes + reader.number<uint16_t>(at + 20) == reader.size()) {
        return at;
      }
    }
  }
  throw InputError(str(reader.path(), " is a damaged zip archive: it has no end record"),
                   "the file may have been cut off while it was copied; fetch it again");
}

Directory find_directory(const Reader& reader) {
  const uint64_t end = find_end(reader);
  Directory directory{reader.number<uint16_t>(end + 10), reader.number<uint32_t>(end + 16)};
  if (end >= kLocator64Bytes && reader.number<uint32_t>(end - kLocator64Bytes) == kLocator64) {
    const auto end64 = reader.number<uint64_t>(end - kLocator64Bytes + 8);
    reader.bytes(end64, kEnd64Bytes);
    require<InputError>(reader.number<uint32_t>(end64) == kEnd64, reader.path(),
                        " is a damaged zip archive: no zip64 end record at byte ", end64);
    directory = {reader.number<uint64_t>(end64 + 32), reader.number<uint64_t>(end64 + 48)};
  }
  return directory;
}

// The central record's three values that may live in its zip64 extra field.
struct Sizes {
  uint64_t unpacked;
  uint64_t packed;
  uint64_t local;
};

Sizes read_sizes(const Reader& reader, uint64_t at, uint64_t extra, uint64_t extra_end) {
  Sizes sizes{reader.number<uint32_t>(at + 24), reader.number<uint32_t>(at + 20),
              reader.number<uint32_t>(at + 42)};
  while (extra + 4 <= extra_end) {
    const auto id = reader.number<uint16_t>(extra);
    const uint64_t field_end = extra + 4 + reader.number<uint16_t>(extra + 2);
    require<InputError>(field_end <= extra_end, reader.path(),
                        " is a damaged zip archive: an extra field at byte ", extra,
                        " is too long");
    uint64_t field = extra + 4;
    if (id == kExtra64) {
      for (uint64_t* value : {&sizes.unpacked, &sizes.packed, &sizes.local}) {
        if (*value == kIn64 && field + 8 <= field_end) {
          *value = reader.number<uint64_t>(field);
          field += 8;
        }
      }
    }
    extra = field_end;
  }
  return sizes;
}

ZipEntry read_entry(const Reader& reader, uint64_t at, uint64_t* next) {
  reader.bytes(at, kCentralBytes);
  require<InputError>(reader.number<uint32_t>(at) == kCentral, reader.path(),
                      " is a damaged zip archive: no directory record at byte ", at);
  const uint64_t name_end = at + kCentralBytes + reader.number<uint16_t>(at + 28);
  const uint64_t extra_end = name_end + reader.number<uint16_t>(at + 30);
  *next = extra_end + reader.number<uint16_t>(at + 32);
  ZipEntry entry;
  entry.name = reader.bytes(at + kCentralBytes, name_end - at - kCentralBytes);
  const Sizes sizes = read_sizes(reader, at, name_end, extra_end);
  const auto flags = reader.number<uint16_t>(at + 8);
  const auto method = reader.number<uint16_t>(at + 10);
  require<InputError>(method == 0 && sizes.packed == sizes.unpacked, "entry ", entry.name, " of ",
                      reader.path(), " is compressed (method ", method,
                      "); torch.save stores without compression");
  require<InputError>((flags & 1) == 0, "entry ", entry.name, " of ", reader.path(),
                      " is encrypted");
  reader.bytes(sizes.local, kLocalBytes);
  require<InputError>(reader.number<uint32_t>(sizes.local) == kLocal, "entry ", entry.name, " of ",
                      reader.path(), " has no local header at byte ", sizes.local);
  const uint64_t data = sizes.local + kLocalBytes + reader.number<uint16_t>(sizes.local + 26) +
                        reader.number<uint16_t>(sizes.local + 28);
  reader.bytes(data, sizes.unpacked);
  entry.offset = static_cast<int64_t>(data);
  entry.size = static_cast<int64_t>(sizes.unpacked);
  return entry;
}

}  // namespace

bool looks_like_zip(std::string_view bytes) {
  return bytes.starts_with("PK\x03\x04");
}

std::vector<ZipEntry> read_zip_entries(const MappedFile& file) {
  const Reader reader(file);
  const Directory directory = find_directory(reader);
  std::vector<ZipEntry> entries;
  std::set<std::string_view> names;
  uint64_t at = directory.offset;
  for (uint64_t i = 0; i < directory.count; ++i) {
    entries.push_back(read_entry(reader, at, &at));
  }
  for (const ZipEntry& entry : entries) {
    require<InputError>(names.insert(entry.name).second, file.path(), " has two entries ",
                        entry.name);
  }
  return entries;
}

}  // namespace reknit
