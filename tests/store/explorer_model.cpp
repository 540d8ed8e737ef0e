#include "tests/store/explorer_model.h"

#include "reknit/base/error.h"
#include "reknit/comm/topology.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace reknit::explorer {
namespace {

void require_that(bool ok, const std::string& sentence) {
  if (!ok) {
    throw StateError(sentence);
  }
}

}  // namespace

Model::Model(const Case& c, Recorder& recorder, int rank)
    : case_(c), recorder_(recorder), rank_(rank) {
  StoreComms comms = StoreComms::over(
      make_world({.name = "world", .nodes = spread_over_nodes(c.world, c.nodes)}, c.world, rank),
      c.placement);
  gather_ = comms.gather;
  const auto device = device_of(rank);
  const auto allocate = [device](int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
  };
  pool_ = std::make_unique<SlotPool>(allocate, /*poison_released=*/true);
  store_ = std::make_unique<Store>(StoreSettings{.name = "toy",
                                                 .placement = c.placement,
                                                 .persistence_threshold = c.persistence_threshold,
                                                 .prefetch_depth = c.depth,
                                                 .overlap = c.overlap,
                                                 .allocator = {}},
                                   std::move(comms), *pool_);
  for (size_t g = 0; g < c.groups.size(); ++g) {
    GroupSpec spec{str("g", g), {}};
    for (size_t p = 0; p < c.groups[g].size(); ++p) {
      spec.params.push_back({.name = str("g", g, ".p", p), .shape = {c.groups[g][p]}});
    }
    order_.push_back(store_->add(std::move(spec)));
  }
  if (!c.order.empty()) {
    order_ = c.order;
    store_->set_order(order_);
  }
  store_->seal();
  pool_->seal();
  for (size_t g = 0; g < c.groups.size(); ++g) {
    versions_.emplace_back(c.groups[g].size(), 0);
    auto& sums = expected_.emplace_back();
    for (size_t p = 0; p < c.groups[g].size(); ++p) {
      const auto id = static_cast<GroupId>(g);
      places_[&store_->spec(id).params[p]] = {id, static_cast<int>(p)};
      sums.emplace_back(cells_in(id, static_cast<int>(p)), 0);
    }
  }
}

int64_t Model::cells_in(GroupId group, int param) const {
  return (case_.groups[group][param] * 4 + kCellBytes - 1) / kCellBytes;
}

Content Model::weight(GroupId group, int param, int64_t cell) const {
  const int version = versions_[group][param];
  const Content content = content_of({1, static_cast<uint64_t>(group), static_cast<uint64_t>(param),
                                      static_cast<uint64_t>(cell), static_cast<uint64_t>(version)});
  recorder_.trace().name(content,
                         str("version ", version, " of g", group, ".p", param, " cell ", cell));
  return content;
}

std::vector<Content> Model::weights_of(GroupId group, int param, int64_t begin,
                                       int64_t count) const {
  std::vector<Content> values;
  for (int64_t cell = begin; cell < begin + count; ++cell) {
    values.push_back(weight(group, param, cell));
  }
  return values;
}

Content Model::contribution(int rank, GroupId group, int param, int64_t cell, int use) const {
  return content_of({2, static_cast<uint64_t>(rank), static_cast<uint64_t>(group),
                     static_cast<uint64_t>(param), static_cast<uint64_t>(cell),
                     static_cast<uint64_t>(use), static_cast<uint64_t>(micro_)});
}

void Model::load() {
  load_version(1);
}

void Model::load_again() {
  load_version(7);
}

void Model::load_version(int version) {
  const Stream& stream = this_rank().compute;
  for (GroupId g = 0; g < store_->num_groups(); ++g) {
    for (int p = 0; p < static_cast<int>(case_.groups[g].size()); ++p) {
      versions_[g][p] = version;
      const at::Tensor values =
          at::empty({case_.groups[g][p]}, at::TensorOptions(at::kFloat).device(device_of(rank_)));
      const Cells cells = cells_of(values);
      launch(stream,
             {rank_, "values to load", {}, {{cells, {}, weights_of(g, p, 0, cells.size())}}, {}});
      store_->write(g, p, 0, values);
    }
  }
}

void Model::read(const Full& weights, GroupId group, const std::string& label) {
  Node node{rank_, str(label, " of g", group), {}, {}, {}};
  for (int p = 0; p < static_cast<int>(case_.groups[group].size()); ++p) {
    const Cells cells = cells_of(weights[p].read());
    node.expects.push_back({cells, weights_of(group, p, 0, cells.size())});
  }
  launch(this_rank().compute, std::move(node));
}

void Model::forward(Phase phase) {
  for (const GroupId g : order_) {
    const Full weights = store_->full(g, phase);
    read(weights, g, to_string(phase));
  }
}

void Model::backward() {
  std::map<GroupId, int> left;
  for (const GroupId g : order_) {
    ++left[g];
  }
  for (auto g = order_.rbegin(); g != order_.rend(); ++g) {
    const Full weights = store_->full(*g, Phase::kBackward);
    read(weights, *g, "train-backward");
    Gradients grads = store_->gradients(*g);
    const int use = --left[*g];
    Node node{rank_, str("gradients of g", *g), {}, {}, {}};
    for (int p = 0; p < static_cast<int>(case_.groups[*g].size()); ++p) {
      const Cells cells = cells_of(grads[p]);
      Assign add{cells, {cells}, {}};
      for (int64_t cell = 0; cell < cells.size(); ++cell) {
        add.plus.push_back(contribution(rank_, *g, p, cell, use));
        for (int rank = 0; rank < case_.world; ++rank) {
          expected_[*g][p][cell] += contribution(rank, *g, p, cell, use);
        }
      }
      node.assigns.push_back(std::move(add));
    }
    launch(this_rank().compute, std::move(node));
    store_->reduce(std::move(grads), use == 0);
  }
  ++micro_;
}

void Model::raise(GroupId group, int param) {
  ++versions_[group][param];
}

void Model::step() {
  store_->finish_gradients();
  std::vector<uint64_t> before;
  for (GroupId g = 0; g < store_->num_groups(); ++g) {
    before.push_back(store_->state(g).version());
    for (int p = 0; p < static_cast<int>(case_.groups[g].size()); ++p) {
      raise(g, p);
    }
  }
  for (const OptimizerShard& shard : store_->begin_update()) {
    Node node{rank_, "update", {}, {}, {}};
    for (const ShardSlice& slice : shard.slices) {
      const auto [g, p] = places_.at(slice.param);
      const auto narrow = [&](const at::Tensor& flat) {
        return cells_of(flat.narrow(0, slice.extent.begin, slice.extent.size()));
      };
      const int64_t first = slice.param_offset * 4 / kCellBytes;
      const Cells grad = narrow(shard.grad);
      const auto& sums = expected_[g][p];
      node.expects.push_back({grad, {sums.begin() + first, sums.begin() + first + grad.size()}});
      node.assigns.push_back({narrow(shard.weight), {}, weights_of(g, p, first, grad.size())});
    }
    launch(this_rank().compute, std::move(node));
  }
  store_->end_update();
  for (auto& group : expected_) {
    for (auto& sums : group) {
      std::fill(sums.begin(), sums.end(), 0);
    }
  }
  for (GroupId g = 0; g < store_->num_groups(); ++g) {
    require_that(store_->state(g).version() == before[g] + (case_.groups[g].empty() ? 0 : 1),
                 str("an update left group ", g, " at version ", before[g]));
  }
  expect_nothing_left();
}

void Model::skip_step() {
  store_->finish_gradients();
  store_->begin_update();
  store_->drop_step();
  for (auto& group : expected_) {
    for (auto& sums : group) {
      std::fill(sums.begin(), sums.end(), 0);
    }
  }
  expect_nothing_left();
}

void Model::generate(int tokens) {
  for (int token = 0; token < tokens; ++token) {
    forward(Phase::kGenerate);
  }
  store_->finish_pass();
  expect_nothing_left();
}

void Model::evaluate() {
  forward();
  store_->finish_pass();
  expect_nothing_left();
}

void Model::edit(GroupId group, int param, int owner) {
  Edit edit = store_->edit(group, param, owner);
  const Cells cells = cells_of(edit.value());
  Node node{rank_, "edit", {{cells, weights_of(group, param, 0, cells.size())}}, {}, {}};
  raise(group, param);
  // Only the owner's copy counts: the others write something else.
  Assign assign{cells, {}, {content_of({3, static_cast<uint64_t>(rank_)})}};
  if (rank_ == owner) {
    assign.plus = weights_of(group, param, 0, cells.size());
  }
  node.assigns.push_back(std::move(assign));
  launch(this_rank().compute, std::move(node));
  std::move(edit).commit();
}

void Model::swap_twice() {
  const auto before = versions_;
  for (auto& group : versions_) {
    for (int& version : group) {
      version += 1000;
    }
  }
  std::vector<at::Tensor> values;
  for (const OptimizerShard& shard : store_->shards()) {
    values.push_back(at::empty_like(shard.master));
    Node node{rank_, "masters to swap in", {}, {}, {}};
    for (const ShardSlice& slice : shard.slices) {
      const auto [g, p] = places_.at(slice.param);
      const Cells cells =
          cells_of(values.back().narrow(0, slice.extent.begin, slice.extent.size()));
      node.assigns.push_back(
          {cells, {}, weights_of(g, p, slice.param_offset * 4 / kCellBytes, cells.size())});
    }
    launch(this_rank().compute, std::move(node));
  }
  store_->swap_masters(values);
  evaluate();
  store_->swap_masters(values);
  versions_ = before;
  evaluate();
}

void Model::overlapping_leases() {
  const Full first = store_->full(0, Phase::kForward);
  {
    const Full second = store_->full(0, Phase::kForward);
    read(second, 0, "inner lease");
  }
  {
    const Full other = store_->full(1, Phase::kForward);
    read(other, 1, "other group");
  }
  read(first, 0, "outer lease");
}

void Model::expect_nothing_left() {
  if (pool_->slots_in_use() > 0 && !store_->pinned()) {
    recorder_.complain(
        str(pool_->slots_in_use(), " slots are left on rank ", rank_, " after a pass"));
  }
}

std::unique_ptr<Recorder> record(const Case& c, const Program& program) {
  auto recorder = std::make_unique<Recorder>(c.world);
  for (int rank = 0; rank < c.world; ++rank) {
    const DeviceScope device(*recorder, rank);
    const RankScope scope(rank, c.world, device_of(rank));
    Model model(c, *recorder, rank);
    model.load();
    program(model);
  }
  recorder->finish();
  return recorder;
}

}  // namespace reknit::explorer
