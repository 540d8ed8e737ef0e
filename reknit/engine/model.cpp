#include "reknit/engine/model.h"

#include "reknit/base/log.h"
#include "reknit/engine/model_folder.h"
#include "reknit/models/groups.h"
#include "reknit/models/init_values.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

const ParamSpec& param_of(const Model& model, const NamePiece& piece) {
  return model.store.spec(piece.group).params.at(piece.param);
}

bool is_value_head(const Model& model, const NamePiece& piece) {
  const ModelSpec& spec = model.decoder.spec();
  return spec.value_head && piece.group == head_group(spec) &&
         piece.param == HeadParams::of(spec).value;
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

// What of the folder goes where; nothing is read before every piece has been found with
// the shape that the configuration asks for.
struct LoadPlan {
  std::vector<NamePiece> pieces;
  std::vector<std::string> names;  ///< in the folder; empty: a value head to be drawn
};

LoadPlan plan_load(const Model& model, const HfFolder& folder, ValueHead head) {
  std::vector<std::string> available;
  for (const TensorInfo& info : folder.tensors()) {
    if (!is_buffer_name(info.name)) {
      available.push_back(info.name);
    }
  }
  LoadPlan plan{name_map(model.decoder.spec()), {}};
  plan.names = match_names(plan.pieces, available);
  std::string wrong;
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const NamePiece& piece = plan.pieces[i];
    const std::string& name = plan.names[i];
    if (piece.optional) {
      continue;
    }
    const std::vector<int64_t> shape = stored_shape(param_of(model, piece), piece);
    if (name.empty() && is_value_head(model, piece)) {
      require_head(folder, head);
    } else if (name.empty()) {
      wrong += str(wrong.empty() ? "" : "; ", piece.hf_name, " is missing");
    } else if (folder.find(name)->shape != shape) {
      wrong += str(wrong.empty() ? "" : "; ", name, " is ", shape_text(folder.find(name)->shape),
                   " where the configuration asks for ", shape_text(shape));
    } else if (!c10::isFloatingType(folder.find(name)->dtype)) {
      wrong += str(wrong.empty() ? "" : "; ", name, " holds ",
                   c10::toString(folder.find(name)->dtype), " numbers, which are no weights");
    }
  }
  require<InputError>(wrong.empty(), folder.path(),
                      " does not hold the model of its config.json: ", wrong);
  return plan;
}

void warn_of_unused(const LoadPlan& plan, const HfFolder& folder) {
  std::string unused;
  for (const TensorInfo& info : folder.tensors()) {
    if (!is_buffer_name(info.name) &&
        std::find(plan.names.begin(), plan.names.end(), info.name) == plan.names.end()) {
      unused += str(unused.empty() ? "" : ", ", info.name);
    }
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
  const LoadPlan plan = plan_load(model, folder, head);
  warn_of_unused(plan, folder);
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const NamePiece& piece = plan.pieces[i];
    if (piece.optional) {
      continue;
    }
    if (plan.names[i].empty()) {
      log_once(model.store.settings().name, ": ", folder.path(),
               " has no value head; a new one is drawn from seed ", seed);
      init_piece(model, piece, seed);
    } else {
      write_piece(model, piece, folder.read(plan.names[i]));
    }
  }
}

void init_model(Model& model, uint64_t seed) {
  for (const NamePiece& piece : stored_pieces(model.decoder.spec())) {
    init_piece(model, piece, seed);
  }
}

}  // namespace reknit
