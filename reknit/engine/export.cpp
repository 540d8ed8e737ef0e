// A model's folder in Hugging Face's form, out of the shards.
#include "reknit/engine/model.h"
#include "reknit/engine/model_folder.h"
#include "reknit/engine/together.h"

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
    return stored_of(piece, copies_.at(piece.param));
  }

 private:
  Store& store_;
  GroupId group_ = -1;
  std::vector<at::Tensor> copies_;
};

void export_together(Model& model, const HfFolder& source, at::ScalarType dtype,
                     const std::string& path, IfPresent if_present) {
  const ModelSpec& spec = model.decoder.spec();
  GroupReader reader(model.store);
  if (this_rank().rank == 0) {
    write_model_folder(
        path, {spec, source.config(), source.generation_config(), source.path(), dtype},
        [&](const NamePiece& piece, const ParamSpec&) { return reader.read(piece); }, if_present);
  } else {
    for (const NamePiece& piece : stored_pieces(spec)) {
      reader.read(piece);
    }
  }
  model.store.comms().world->barrier();
}

}  // namespace

void export_model(Model& model, const HfFolder& source, at::ScalarType dtype,
                  const std::string& path, IfPresent if_present) {
  together(*model.store.comms().world,
           [&] { export_together(model, source, dtype, path, if_present); });
}

}  // namespace reknit
