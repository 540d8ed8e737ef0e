#include "reknit/engine/model_folder.h"

#include "reknit/base/error.h"
#include "reknit/checkpoint/hf_config.h"
#include "reknit/models/groups.h"

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>

namespace reknit {

namespace fs = std::filesystem;

std::vector<NamePiece> stored_pieces(const ModelSpec& spec) {
  std::vector<NamePiece> pieces = name_map(spec);
  std::erase_if(pieces, [](const NamePiece& piece) { return piece.optional; });
  return pieces;
}

bool is_value_head(const ModelSpec& spec, const NamePiece& piece) {
  return spec.value_head && piece.group == head_group(spec) &&
         piece.param == HeadParams::of(spec).value;
}

FoundPieces find_pieces(const ModelSpec& spec, const std::vector<TensorInfo>& tensors) {
  std::map<std::string, const TensorInfo*> info_of;
  std::vector<std::string> available;
  for (const TensorInfo& info : tensors) {
    if (!is_buffer_name(info.name)) {
      available.push_back(info.name);
      info_of[info.name] = &info;
    }
  }
  FoundPieces found{name_map(spec), {}, {}, {}};
  found.names = match_names(found.pieces, available);
  const std::vector<GroupSpec> groups = model_groups(spec);
  const auto add = [&](const std::string& line) {
    found.wrong += (found.wrong.empty() ? "" : "; ") + line;
  };
  for (size_t i = 0; i < found.pieces.size(); ++i) {
    const NamePiece& piece = found.pieces[i];
    const std::string& name = found.names[i];
    const std::vector<int64_t> shape =
        stored_shape(groups.at(piece.group).params.at(piece.param), piece);
    if (piece.optional || (name.empty() && is_value_head(spec, piece))) {
      continue;
    }
    if (name.empty()) {
      add(piece.hf_name + " is missing");
    } else if (const TensorInfo& info = *info_of.at(name); info.shape != shape) {
      add(str(name, " is ", shape_text(info.shape), " where the configuration asks for ",
              shape_text(shape)));
    } else if (!c10::isFloatingType(info.dtype)) {
      add(str(name, " holds ", c10::toString(info.dtype), " numbers, which are no weights"));
    }
  }
  std::copy_if(available.begin(), available.end(), std::back_inserter(found.unused),
               [&](const std::string& name) {
                 return std::find(found.names.begin(), found.names.end(), name) ==
                        found.names.end();
               });
  return found;
}

at::Tensor stored_of(const NamePiece& piece, const at::Tensor& param) {
  const at::Tensor rows = param.narrow(0, piece.row_begin, piece.row_end - piece.row_begin);
  return piece.transposed ? rows.t() : rows;
}

at::Tensor elements_of(const NamePiece& piece, const at::Tensor& stored) {
  return (piece.transposed ? stored.t() : stored).contiguous().reshape(-1);
}

int64_t first_element(const NamePiece& piece, const ParamSpec& param) {
  return piece.row_begin * c10::multiply_integers(at::IntArrayRef(param.shape).slice(1));
}

void keep_checkpoint(const std::string& checkpoint, const std::string& out) {
  const auto kept = fs::weakly_canonical(checkpoint);
  const auto written = fs::weakly_canonical(out);
  const auto [end, rest] = std::mismatch(written.begin(), written.end(), kept.begin(), kept.end());
  if (end == written.end() || rest == kept.end()) {
    throw UsageError(str("--out ", out, " lies over the checkpoint ", checkpoint),
                     "name another folder");
  }
}

std::vector<TensorInfo> write_model_folder(
    const std::string& path, const ModelFolder& folder,
    const std::function<at::Tensor(const NamePiece&, const ParamSpec&)>& read,
    IfPresent if_present) {
  const nlohmann::json config = written_config(folder.config, folder.spec, folder.dtype);
  const std::vector<GroupSpec> groups = model_groups(folder.spec);
  const std::vector<NamePiece> pieces = stored_pieces(folder.spec);
  const auto param_of = [&](const NamePiece& piece) -> const ParamSpec& {
    return groups.at(piece.group).params.at(piece.param);
  };
  HfFolderContents contents;
  contents.config = &config;
  contents.generation_config = &folder.generation_config;
  contents.tokenizer_folder = folder.tokenizer_folder;
  for (const NamePiece& piece : pieces) {
    const std::vector<int64_t> shape = stored_shape(param_of(piece), piece);
    contents.tensors.push_back({piece.hf_name, folder.dtype, shape});
  }
  size_t next = 0;
  write_hf_folder(
      path, contents,
      [&](const TensorInfo&) {
        const NamePiece& piece = pieces.at(next++);
        return read(piece, param_of(piece)).to(folder.dtype).contiguous();
      },
      if_present);
  return std::move(contents.tensors);
}

}  // namespace reknit
