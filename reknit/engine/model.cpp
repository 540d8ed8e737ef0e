#include "reknit/engine/model.h"

#include "reknit/base/log.h"
#include "reknit/engine/model_folder.h"
#include "reknit/models/init_values.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

const ParamSpec& param_of(const Model& model, const NamePiece& piece) {
  return model.store.spec(piece.group).params.at(piece.param);
}

void require_head(const HfFolder& folder, ValueHead head) {
  if (head != ValueHead::kNewIfAbsent) {
    throw InputError(str(folder.path(), " has no value head (v_head.weight or score.weight)"),
                     "a reward model without one scores at random: pass --allow-random-reward if "
                     "that is what you want");
  }
}

void write_piece(Model& model, const NamePiece& piece, const at::Tensor& stored) {
  model.store.write(piece.group, piece.param, first_element(piece, param_of(model, piece)),
                    elements_of(piece, stored));
}

void init_piece(Model& model, const NamePiece& piece, uint64_t seed) {
  write_piece(model, piece, init_values(model.decoder.spec(), param_of(model, piece), piece, seed));
}

// Nothing is read before every piece has been found with the shape that the configuration
// asks for.
FoundPieces require_pieces(const Model& model, const HfFolder& folder, ValueHead head) {
  const ModelSpec& spec = model.decoder.spec();
  FoundPieces found = find_pieces(spec, folder.tensors());
  for (size_t i = 0; i < found.pieces.size(); ++i) {
    if (found.names[i].empty() && is_value_head(spec, found.pieces[i])) {
      require_head(folder, head);
    }
  }
  require<InputError>(found.wrong.empty(), folder.path(),
                      " does not hold the model of its config.json: ", found.wrong);
  return found;
}

void warn_of_unused(const FoundPieces& found, const HfFolder& folder) {
  std::string unused;
  for (const std::string& name : found.unused) {
    unused += (unused.empty() ? "" : ", ") + name;
  }
  if (!unused.empty() && this_rank().rank == 0) {
    log_warning(folder.path(), " holds tensors that this model does not use: ", unused);
  }
}

}  // namespace

Model::Model(ModelSpec spec, StoreSettings settings, StoreComms comms, SlotPool& pool)
    : decoder(std::move(spec)), store(std::move(settings), std::move(comms), pool) {}

std::unique_ptr<Model> make_model(ModelSpec spec, StoreSettings settings, StoreComms comms,
                                  SlotPool& pool) {
  auto model =
      std::make_unique<Model>(std::move(spec), std::move(settings), std::move(comms), pool);
  for (GroupSpec& group : model->decoder.groups()) {
    model->store.add(std::move(group));
  }
  model->store.set_order(model->decoder.forward_order());
  model->store.seal();
  return model;
}

void load_model(Model& model, const HfFolder& folder, ValueHead head, uint64_t seed) {
  const FoundPieces found = require_pieces(model, folder, head);
  warn_of_unused(found, folder);
  for (size_t i = 0; i < found.pieces.size(); ++i) {
    const NamePiece& piece = found.pieces[i];
    if (piece.optional) {
      continue;
    }
    if (found.names[i].empty()) {
      log_once(model.store.settings().name, ": ", folder.path(),
               " has no value head; a new one is drawn from seed ", seed);
      init_piece(model, piece, seed);
    } else {
      write_piece(model, piece, folder.read(found.names[i]));
    }
  }
}

void init_model(Model& model, uint64_t seed) {
  for (const NamePiece& piece : stored_pieces(model.decoder.spec())) {
    init_piece(model, piece, seed);
  }
}

}  // namespace reknit
