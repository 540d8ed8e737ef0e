// Where the entries of a zip archive lie, for archives that store without packing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reknit {

class MappedFile;

/// One entry's name and its bytes, as places in the file.
struct ZipEntry {
  std::string name;
  int64_t offset;
  int64_t size;
};

/// True if the bytes begin like a zip archive.
bool looks_like_zip(std::string_view bytes);

/// The entries by the central directory, zip64 included, each checked against
/// its local header and the end of the file. Throws InputError naming the file
/// and the entry if the archive is damaged, or an entry is packed, encrypted or
/// named twice.
std::vector<ZipEntry> read_zip_entries(const MappedFile& file);

}  // namespace reknit
