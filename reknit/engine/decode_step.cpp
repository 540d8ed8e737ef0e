#include "reknit/engine/decode_step.h"

#include <ATen/ATen.h>

namespace reknit {
namespace {

constexpr size_t kMostSteps = 8;  // recorded at a time; each holds its own results

std::vector<const void*> addresses_of(Store& store, const KvCache& cache, int64_t layers) {
  std::vector<const void*> all;
  for (GroupId group = 0; group < store.num_groups(); ++group) {
    const Full full = store.full(group, Phase::kGenerate);
    for (size_t p = 0; p < store.spec(group).params.size(); ++p) {
      all.push_back(full[p].read().const_data_ptr());
    }
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    all.push_back(cache.layer(layer).k.const_data_ptr());
    all.push_back(cache.layer(layer).v.const_data_ptr());
  }
  return all;
}

}  // namespace

DecodeStep::DecodeStep(const Decoder& model, Store& store, KvCache& cache, const StepKind& kind)
    : model_(model), store_(store), cache_(cache), kind_(kind) {
  const auto options = at::TensorOptions(at::kLong).device(this_rank().device);
  state_.inputs = at::zeros({kind.rows}, options);
  state_.lengths = at::zeros({kind.rows}, options);
  state_.positions = at::zeros({kind.rows}, options);
  state_.tokens = at::zeros({kind.most, kind.rows}, options);
  state_.logp = at::zeros({kind.most, kind.rows}, options.dtype(at::kFloat));
  slots_ = at::arange(kind.rows, options);
  keys_ = at::zeros({kind.rows}, options);
  forbidden_until_ = at::zeros({kind.rows}, options);
}

void DecodeStep::begin(const std::vector<int64_t>& lengths, const std::vector<int64_t>& keys,
                       int64_t forbidden_until) {
  state_.lengths.copy_(to_device(lengths, this_rank().device) - 1);  // a draw counts its input as cached
  state_.positions.zero_();
  keys_.copy_(to_device(keys, this_rank().device));
  forbidden_until_.fill_(forbidden_until);
}

void DecodeStep::run() {
  REKNIT_INVARIANT(store_.reads_are_local(), "a decode step was run while the weights of ",
                   store_.settings().name, " are not all here");
  if (!has_run_) {
    has_run_ = true;
    run_kernels();
    return;
  }
  if (!graph_) {
    graph_ = std::make_unique<CudaGraph>([this] { run_kernels(); });
  }
  graph_->replay();
}

void DecodeStep::run_kernels() {
  cache_.select(slots_, state_.lengths);
  draw(model_.decode(store_, state_.inputs, cache_));
}

void DecodeStep::draw(const at::Tensor& logits) {
  const ops::Sampled drawn =
      ops::sample(logits, {kind_.temperature, kind_.top_k, kind_.top_p, kind_.vocab}, keys_,
                  state_.positions, forbidden_until_, kind_.eos);
  ops::keep_drawn(drawn, state_);
}

bool DecodeSteps::usable(const Store& store) {
  return CudaGraph::available(this_rank().device) && store.reads_are_local() && !kPoisonReleased;
}

DecodeStep& DecodeSteps::step(const Decoder& model, Store& store, KvCache& cache,
                              const StepKind& kind) {
  std::vector<const void*> addresses = addresses_of(store, cache, model.spec().layers);
  const std::vector<int64_t> cache_sizes = cache.layer(0).k.sizes().vec();
  if (addresses != addresses_ || cache_sizes != cache_sizes_) {
    clear();
    addresses_ = std::move(addresses);
    cache_sizes_ = cache_sizes;
  }
  for (const Known& known : known_) {
    if (known.kind == kind) {
      return *known.step;
    }
  }
  if (known_.size() >= kMostSteps) {
    clear();
  }
  known_.push_back({kind, std::make_unique<DecodeStep>(model, store, cache, kind)});
  return *known_.back().step;
}

void DecodeSteps::clear() {
  known_.clear();
}

}  // namespace reknit
