// Where in the flat tensors of a DeepSpeed checkpoint each parameter lies.
#include "reknit/checkpoint/deepspeed_folder.h"

#include "reknit/base/error.h"
#include "reknit/base/round_up.h"

#include <algorithm>
#include <set>

namespace reknit {
namespace {

int64_t numel_of(const std::vector<int64_t>& shape) {
  return c10::multiply_integers(shape);
}

}  // namespace

void DeepSpeedFolder::add_param(Param param) {
  const auto [place, added] = index_.emplace(param.info.name, params_.size());
  require<InputError>(added, path_, " names the parameter ", param.info.name, " twice");
  params_.push_back(std::move(param));
}

DeepSpeedFolder::Groups DeepSpeedFolder::named_groups() const {
  const DeepSpeedFile& file = first();
  Groups groups;
  for (const PickleValue* shapes : file.get(file.root(), "param_shapes", PickleKind::kList).items) {
    groups.emplace_back();
    for (size_t i = 0; i + 1 < shapes->items.size(); i += 2) {
      const PickleValue& name = *shapes->items[i];
      require<InputError>(shapes->kind == PickleKind::kDict && name.kind == PickleKind::kText,
                          file.path(), " has param_shapes that are not names with shapes");
      groups.back().push_back(
          {std::string(name.text), file.shape(*shapes->items[i + 1], name.text), 0});
    }
  }
  return groups;
}

void DeepSpeedFolder::read_paddings(Groups& groups) const {
  const DeepSpeedFile& file = *optims_.front();
  const PickleValue& state = file.get(file.root(), "optimizer_state_dict", PickleKind::kDict);
  const PickleValue* all = DeepSpeedFile::find(state, "param_alignment_paddings");
  if (stage_ == 3 || all == nullptr) {
    return;
  }
  require<InputError>(all->items.size() == groups.size(), file.path(), " has paddings of ",
                      all->items.size(), " groups, ", first().path(), " shapes of ", groups.size());
  for (size_t group = 0; group < groups.size(); ++group) {
    const PickleValue& paddings = *all->items[group];
    require<InputError>(paddings.items.size() == groups[group].size(), file.path(), " has ",
                        paddings.items.size(), " paddings of the ", groups[group].size(),
                        " parameters of group ", group);
    for (size_t i = 0; i < groups[group].size(); ++i) {
      groups[group][i].padding = file.integer(*paddings.items[i], "param_alignment_paddings");
      require<InputError>(groups[group][i].padding >= 0 && groups[group][i].padding < 1 << 30,
                          file.path(), " pads ", groups[group][i].name, " by ",
                          groups[group][i].padding, " elements");
    }
  }
}

void DeepSpeedFolder::read_flats(const DeepSpeedFile& file, const PickleValue& masters,
                                 const PickleValue& optimizer) {
  require<InputError>(optimizer.kind == PickleKind::kDict, file.path(),
                      " is an elastic checkpoint, whose states are not cut as its masters are");
  std::vector<Flat> flats;
  for (StoredTensor& master : file.tensors(masters, "fp32 group")) {
    flats.push_back({&file, std::move(master), {}});
  }
  read_states(file, optimizer, flats);
  require<InputError>(flats_.empty() || flats.size() == flats_.front().size(), file.path(),
                      " holds ", flats.size(), " groups of parameters, another rank's file ",
                      flats_.empty() ? 0 : flats_.front().size());
  flats_.push_back(std::move(flats));
  const PickleValue& state = file.get(file.root(), "optimizer_state_dict", PickleKind::kDict);
  if (flats_.size() == 1) {
    read_scaler(file, state);
  }
}

// torch.optim numbers the tensors that it was given; the groups list those numbers in order.
void DeepSpeedFolder::read_states(const DeepSpeedFile& file, const PickleValue& optimizer,
                                  std::vector<Flat>& flats) {
  const PickleValue& states = file.get(optimizer, "state", PickleKind::kDict);
  std::map<int64_t, const PickleValue*> by_number;
  for (size_t i = 0; i + 1 < states.items.size(); i += 2) {
    by_number[file.integer(*states.items[i], "a parameter's number")] = states.items[i + 1];
  }
  size_t at = 0;
  for (const PickleValue* group : file.get(optimizer, "param_groups", PickleKind::kList).items) {
    const PickleValue& numbers = file.get(*group, "params", PickleKind::kList);
    const PickleValue* steps = DeepSpeedFile::find(*group, "step");
    for (const PickleValue* number : numbers.items) {
      require<InputError>(at < flats.size(), file.path(), " has optimizer states of more than the ",
                          flats.size(), " tensors of its masters");
      Flat& flat = flats[at++];
      const auto found = by_number.find(file.integer(*number, "a parameter's number"));
      if (found == by_number.end()) {
        continue;
      }
      for (size_t i = 0; i + 1 < found->second->items.size(); i += 2) {
        const std::string kind(found->second->items[i]->text);
        if (kind == "step") {
          steps = found->second->items[i + 1];
          continue;
        }
        std::optional<StoredTensor> state =
            file.archive().tensor(kind, *found->second->items[i + 1]);
        if (state && state->info.numel() >= flat.master.info.numel()) {
          flat.states.emplace(kind, *std::move(state));
        }
      }
    }
    if (steps != nullptr) {
      progress_.optimizer_steps = file.integer(*steps, "step");
      require<InputError>(progress_.optimizer_steps >= 0, file.path(), " has ",
                          progress_.optimizer_steps, " as step");
    }
  }
  require<InputError>(at == flats.size(), file.path(), " has optimizer states of ", at, " of the ",
                      flats.size(), " tensors of its masters");
}

// Every rank has as many elements; the masters of the last one come without their padding.
void DeepSpeedFolder::cut_groups(const Groups& groups) {
  require<InputError>(flats_.front().size() == groups.size(), path_, " has shapes of ",
                      groups.size(), " groups and masters of ", flats_.front().size());
  for (size_t group = 0; group < groups.size(); ++group) {
    const Flat& largest = flats_.front()[group];
    int64_t length = largest.master.info.numel();
    for (const auto& [kind, state] : largest.states) {
      length = std::max(length, state.info.numel());
    }
    int64_t held = 0;
    for (const auto& rank : flats_) {
      held += rank[group].master.info.numel();
    }
    int64_t offset = 0;
    for (const Named& named : groups[group]) {
      Param param{{named.name, at::kFloat, named.shape}, true, {}, {}};
      const int64_t end = offset + numel_of(named.shape);
      for (int64_t from = offset; from < end;) {
        const int64_t rank = length == 0 ? ranks_ : from / length;
        const int64_t inner = from - rank * length;
        const int64_t count = std::min(end - from, length - inner);
        const bool inside =
            rank < ranks_ && inner + count <= flats_[rank][group].master.info.numel();
        require<InputError>(inside, path_, " holds ", held, " elements of group ", group,
                            ", which end inside the parameter ", named.name, " of shape ",
                            shape_text(named.shape));
        param.parts.push_back({&flats_[rank][group], inner, count});
        from += count;
      }
      add_param(std::move(param));
      offset = end + named.padding;
    }
    require<InputError>(round_up(offset, 2 * ranks_) >= round_up(held, 2 * ranks_), path_,
                        " holds ", held, " elements of group ", group, ", its parameters have ",
                        offset);
  }
}

// A rank's tensors follow each other as if they were one.
void DeepSpeedFolder::cut_params(const Groups& groups) {
  const auto place = [&](Param& param, int rank, int64_t from, int64_t count) {
    for (const Flat& flat : flats_[rank]) {
      const int64_t numel = flat.master.info.numel();
      if (count > 0 && from < numel) {
        const int64_t taken = std::min(count, numel - from);
        param.parts.push_back({&flat, from, taken});
        from += taken;
        count -= taken;
      }
      from -= numel;
    }
    require<InputError>(count <= 0, flats_[rank].empty() ? path_ : flats_[rank][0].file->path(),
                        " ends inside the parameter ", param.info.name, " of shape ",
                        shape_text(param.info.shape));
  };
  int64_t offset = 0;
  for (const auto& group : groups) {
    for (const Named& named : group) {
      Param param{{named.name, at::kFloat, named.shape}, true, {}, {}};
      const int64_t numel = numel_of(named.shape);
      const int64_t share = (numel + ranks_ - 1) / ranks_;
      for (int rank = 0; rank < ranks_; ++rank) {
        const int64_t begin = std::min(numel, rank * share);
        place(param, rank, offset, std::min(numel, begin + share) - begin);
      }
      add_param(std::move(param));
      offset += share;
    }
  }
  for (const auto& rank : flats_) {
    int64_t held = 0;
    for (const Flat& flat : rank) {
      held += flat.master.info.numel();
    }
    require<InputError>(held == offset, rank.empty() ? path_ : rank[0].file->path(), " holds ",
                        held, " elements, a rank's parts of the parameters have ", offset);
  }
}

/// The module's parameters in order, tied ones once, without buffers.
std::vector<DeepSpeedFolder::Named> DeepSpeedFolder::module_params() const {
  const DeepSpeedFile& file = first();
  const PickleValue& module = file.get(file.root(), "module", PickleKind::kDict);
  std::set<std::string_view> buffers;
  if (const PickleValue* names = DeepSpeedFile::find(file.root(), "buffer_names")) {
    for (const PickleValue* name : names->items) {
      buffers.insert(name->text);
    }
  }
  std::vector<Named> params;
  std::set<std::pair<int64_t, std::vector<int64_t>>> seen;  // the same bytes are the same tensor
  for (size_t i = 0; i + 1 < module.items.size(); i += 2) {
    const std::string name(module.items[i]->text);
    if (buffers.contains(name)) {
      continue;
    }
    const StoredTensor stored = file.tensor(*module.items[i + 1], name);
    if (stored.info.numel() == 0 || seen.emplace(stored.offset, stored.info.shape).second) {
      params.push_back({name, stored.info.shape, 0});
    }
  }
  return params;
}

// Stage 0: the optimizer's tensors have no names, only the order of the module's parameters.
void DeepSpeedFolder::read_unsharded() {
  const DeepSpeedFile& file = first();
  const PickleValue& saved = file.get(file.root(), "optimizer", PickleKind::kDict);
  const PickleValue* inner = DeepSpeedFile::find(saved, "optimizer_state_dict");
  const PickleValue& optimizer = inner == nullptr ? saved : *inner;
  const size_t groups = file.get(optimizer, "param_groups", PickleKind::kList).items.size();
  if (groups != 1) {
    throw InputError(str(path_, " was saved without ZeRO and with ", groups,
                         " optimizer groups: it does not say which parameter is which"),
                     "save it again with ZeRO stage 1, whose files hold names");
  }
  const std::vector<Named> named = module_params();
  const PickleValue& module = file.get(file.root(), "module", PickleKind::kDict);
  std::vector<Flat> flats;
  const PickleValue* flat = DeepSpeedFile::find(saved, "fp32_groups_flat");
  const PickleValue* lists = DeepSpeedFile::find(saved, "fp32_groups");
  if (flat != nullptr) {
    for (StoredTensor& master : file.tensors(*flat, "fp32_groups_flat")) {
      flats.push_back({&file, std::move(master), {}});
    }
  } else if (lists != nullptr && lists->items.size() == 1) {
    for (StoredTensor& master : file.tensors(*lists->items[0], "fp32_groups")) {
      flats.push_back({&file, std::move(master), {}});
    }
  } else {
    for (const Named& param : named) {
      flats.push_back({&file, file.tensor(file.get(module, param.name), param.name), {}});
    }
  }
  read_states(file, optimizer, flats);
  read_scaler(file, saved);
  flats_.push_back(std::move(flats));
  if (flat != nullptr) {
    cut_groups({named});
    return;
  }
  require<InputError>(flats_[0].size() == named.size(), path_, " holds masters of ",
                      flats_[0].size(), " parameters, its module has ", named.size());
  for (size_t i = 0; i < named.size(); ++i) {
    const Flat& own = flats_[0][i];
    require<InputError>(own.master.info.shape == named[i].shape, path_, " holds ", named[i].name,
                        " of shape ", shape_text(named[i].shape), " and in its place a master of ",
                        shape_text(own.master.info.shape));
    for (const auto& [kind, state] : own.states) {
      require<InputError>(state.info.shape == named[i].shape, path_, " holds a state ", kind,
                          " of shape ", shape_text(state.info.shape), " in the place of ",
                          named[i].name, " of shape ", shape_text(named[i].shape));
    }
    add_param({{named[i].name, at::kFloat, named[i].shape},
               true,
               {{&own, 0, numel_of(named[i].shape)}},
               {}});
  }
}

// Stage 1 leaves them in the module; 2 and 3 have them apart, cut over the ranks in stage 3.
void DeepSpeedFolder::read_frozen() {
  const DeepSpeedFile& file = first();
  const PickleValue* shapes = DeepSpeedFile::find(file.root(), "frozen_param_shapes");
  if (shapes == nullptr || shapes->items.empty()) {
    if (stage_ == 3) {
      return;
    }
    const PickleValue& module = file.get(file.root(), "module", PickleKind::kDict);
    const PickleValue* shared = DeepSpeedFile::find(file.root(), "shared_params");
    for (const Named& named : module_params()) {
      const bool tied = shared != nullptr && DeepSpeedFile::find(*shared, named.name) != nullptr;
      if (!index_.contains(named.name) && !tied) {
        StoredTensor stored = file.tensor(file.get(module, named.name), named.name);
        add_param({stored.info, false, {}, {{&file, stored}}});
      }
    }
    return;
  }
  for (int rank = 1; stage_ == 3 && rank < ranks_; ++rank) {
    models_.push_back(std::make_unique<DeepSpeedFile>(
        str(path_, "/zero_pp_rank_", rank, "_mp_rank_00_model_states.pt")));
  }
  for (size_t i = 0; i + 1 < shapes->items.size(); i += 2) {
    const std::string name(shapes->items[i]->text);
    Param param{{name, at::kFloat, file.shape(*shapes->items[i + 1], name)}, false, {}, {}};
    int64_t held = 0;
    for (const auto& model : models_) {
      const PickleValue& fragments =
          model->get(model->root(), "frozen_param_fragments", PickleKind::kDict);
      param.fragments.emplace_back(model.get(), model->tensor(model->get(fragments, name), name));
      held += param.fragments.back().second.info.numel();
    }
    param.info.dtype = param.fragments.front().second.info.dtype;
    require<InputError>(held >= param.info.numel(), path_, " holds ", held, " elements of ", name,
                        " of shape ", shape_text(param.info.shape));
    add_param(std::move(param));
  }
}

}  // namespace reknit
