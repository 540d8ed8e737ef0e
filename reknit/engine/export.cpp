// A model's folder in Hugging Face's form, out of the shards.
#include "reknit/checkpoint/hf_config.h"
#include "reknit/engine/model.h"
#include "reknit/engine/together.h"
#include "reknit/models/name_map.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

namespace reknit {
namespace {

/// Host copies of one group's parameters at a time: pieces come group by group.
class GroupReader {
 public:
  explicit GroupReader(Store& store) : store_(store) {}

  /// Collective when `piece` is the first of its group.
  at::Tensor read(const NamePiece& piece) {
    if (piece.group != group_) {
      copies_.clear();
      {
        const Full weights = store_.full(piece.group, Phase::kSave);
        for (size_t i = 0; i < store_.spec(piece.group).params.size(); ++i) {
          copies_.push_back(weights[i].read().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
        }
      }
      store_.finish_pass();
      group_ = piece.group;
    }
    const at::Tensor rows =
        copies_.at(piece.param).narrow(0, piece.row_begin, piece.row_end - piece.row_begin);
    return piece.transposed ? rows.t() : rows;
  }

 private:
  Store& store_;
  GroupId group_ = -1;
  std::vector<at::Tensor> copies_;
};

void export_together(Model& model, const HfFolder& source, at::ScalarType dtype,
                     const std::string& path, IfPresent if_present) {
  std::vector<NamePiece> pieces;
  for (NamePiece& piece : name_map(model.decoder.spec())) {
    if (!piece.optional) {
      pieces.push_back(std::move(piece));
    }
  }
  GroupReader reader(model.store);
  if (this_rank().rank != 0) {
    for (const NamePiece& piece : pieces) {
      reader.read(piece);
    }
    model.store.comms().world->barrier();
    return;
  }
  const nlohmann::json config = written_config(source.config(), model.decoder.spec(), dtype);
  HfFolderContents contents;
  contents.config = &config;
  contents.generation_config =
      source.generation_config().is_null() ? nullptr : &source.generation_config();
  contents.tokenizer_folder = source.path();
  std::map<std::string, const NamePiece*> by_name;
  for (const NamePiece& piece : pieces) {
    const ParamSpec& param = model.store.spec(piece.group).params.at(piece.param);
    contents.tensors.push_back({piece.hf_name, dtype, stored_shape(param, piece)});
    by_name[piece.hf_name] = &piece;
  }
  write_hf_folder(
      path, contents,
      [&](const TensorInfo& info) {
        return reader.read(*by_name.at(info.name)).to(dtype).contiguous();
      },
      if_present);
  model.store.comms().world->barrier();
}

}  // namespace

void export_model(Model& model, const HfFolder& source, at::ScalarType dtype,
                  const std::string& path, IfPresent if_present) {
  together(*model.store.comms().world,
           [&] { export_together(model, source, dtype, path, if_present); });
}

}  // namespace reknit
