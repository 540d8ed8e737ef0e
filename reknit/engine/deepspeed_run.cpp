#include "reknit/engine/deepspeed_run.h"

#include "reknit/base/log.h"
#include "reknit/engine/model_folder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace reknit {
namespace {

using Groups = std::vector<GroupSpec>;

/// Where each piece of the model stands in the folder.
struct Match {
  NamePiece piece;
  std::string name;
};

const ParamSpec& param_of(const Groups& groups, const NamePiece& piece) {
  return groups.at(piece.group).params.at(piece.param);
}

/// Throws InputError unless the folder has every piece in its shape, and nothing else.
std::vector<Match> matched_pieces(const DeepSpeedFolder& folder, const ModelSpec& spec) {
  FoundPieces found = find_pieces(spec, folder.parameters());
  std::vector<Match> matches;
  for (size_t i = 0; i < found.pieces.size(); ++i) {
    if (!found.pieces[i].optional) {
      matches.push_back({found.pieces[i], found.names[i]});
    }
  }
  for (const std::string& name : found.unused) {
    found.wrong += str(found.wrong.empty() ? "" : "; ", "the configuration has no ", name);
  }
  if (!found.wrong.empty()) {
    throw InputError(
        str(folder.path(), " does not hold the model of this configuration: ", found.wrong),
        "name the model that the checkpoint was trained with");
  }
  return matches;
}

Groups groups_of(const Store& store) {
  Groups groups;
  for (GroupId group = 0; group < store.num_groups(); ++group) {
    groups.push_back(store.spec(group));
  }
  return groups;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "none" : text;
}

void require_states(const DeepSpeedFolder& folder, const std::vector<Match>& matches,
                    const Groups& groups, const Optimizer& optimizer) {
  const std::vector<std::string> held = folder.state_kinds();
  for (const Match& match : matches) {
    const ParamSpec& param = param_of(groups, match.piece);
    if (!param.trainable) {
      continue;
    }
    require<InputError>(folder.trained(match.name), folder.path(), " holds ", match.name,
                        " as frozen, without optimizer states, and this run trains it");
    const std::vector<std::string> wanted = optimizer.state_names(param);
    if (wanted != held) {
      throw InputError(str(folder.path(), " holds the optimizer states ", listed(held), ", ",
                           optimizer.name(), " has ", listed(wanted)),
                       "resume with the optimizer that the checkpoint was trained with");
    }
  }
}

void load_state(Store& store, Optimizer& optimizer, const Match& match, const ParamSpec& param,
                const std::string& kind, const at::Tensor& values) {
  const int64_t begin = first_element(match.piece, param);
  const std::vector<OptimizerShard> shards = store.shards();
  for (size_t i = 0; i < shards.size(); ++i) {
    for (size_t j = 0; j < shards[i].slices.size(); ++j) {
      const ShardSlice& slice = shards[i].slices[j];
      const Extent here{slice.param_offset, slice.param_offset + slice.extent.size()};
      const Extent both = intersect(here, {begin, begin + values.numel()});
      if (slice.param->name == param.name && both.size() > 0) {
        optimizer.state(i, j, kind)
            .narrow(0, both.begin - here.begin, both.size())
            .copy_(values.narrow(0, both.begin - begin, both.size()));
      }
    }
  }
}

Trainer::State progress_of(const DeepSpeedFolder& folder, const Trainer& trainer) {
  const DeepSpeedProgress& progress = folder.progress();
  Trainer::State state{progress.steps, progress.steps - progress.skipped, trainer.state().scaler};
  if (const auto& scaler = progress.scaler) {
    state.scaler.scale = scaler->scale;
    state.scaler.step = scaler->iteration;
    state.scaler.last_overflow = scaler->last_overflow;
    state.scaler.hysteresis =
        static_cast<int>(scaler->hysteresis.value_or(state.scaler.hysteresis));
  }
  return state;
}

}  // namespace

void load_deepspeed(Model& model, Trainer& trainer, const DeepSpeedFolder& folder) {
  const Groups groups = groups_of(model.store);
  const std::vector<Match> matches = matched_pieces(folder, model.decoder.spec());
  require_states(folder, matches, groups, trainer.optimizer());
  model.store.drop_step();
  for (const Match& match : matches) {
    const NamePiece& piece = match.piece;
    const ParamSpec& param = param_of(groups, piece);
    model.store.write(piece.group, piece.param, first_element(piece, param),
                      elements_of(piece, folder.value(match.name)));
    for (const std::string& kind : trainer.optimizer().state_names(param)) {
      if (param.trainable) {
        load_state(model.store, trainer.optimizer(), match, param, kind,
                   elements_of(piece, folder.state(match.name, kind)));
      }
    }
  }
  const DeepSpeedProgress& progress = folder.progress();
  const int64_t applied = progress.steps - progress.skipped;
  if (progress.scheduled.value_or(applied) != applied && this_rank().rank == 0) {
    log_warning(folder.path(), ": its schedule had counted ", *progress.scheduled,
                " updates; it goes on with update ", applied);
  }
  trainer.restore(progress_of(folder, trainer));
  trainer.optimizer().set_step(progress.optimizer_steps);
}

void export_deepspeed(const DeepSpeedFolder& folder, const HfFolder& source, at::ScalarType dtype,
                      const std::string& path, IfPresent if_present) {
  keep_checkpoint(folder.path(), path);
  const ModelSpec spec = ModelSpec::from_hf(source.config());
  std::map<std::string, std::string> names;
  for (const Match& match : matched_pieces(folder, spec)) {
    names[match.piece.hf_name] = match.name;
  }
  write_model_folder(
      path, {spec, source.config(), source.generation_config(), source.path(), dtype},
      [&](const NamePiece& piece, const ParamSpec&) {
        return folder.value(names.at(piece.hf_name));
      },
      if_present);
}

std::string deepspeed_summary(const DeepSpeedFolder& folder) {
  const DeepSpeedProgress& progress = folder.progress();
  const std::string client = progress.client.empty()
                                 ? ""
                                 : str(" (the user's own entries are left: ", progress.client, ")");
  return str(folder.path(), ": DeepSpeed ", folder.version(), ", ZeRO-", folder.zero_stage(),
             " over ", folder.ranks(), folder.ranks() == 1 ? " rank" : " ranks", ", step ",
             progress.steps, " (", progress.skipped, " skipped), ", progress.samples,
             " sequences; it says nothing of its data", client);
}

}  // namespace reknit
