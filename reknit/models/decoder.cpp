#include "reknit/models/decoder.h"

#include "reknit/base/host_copy.h"
#include "reknit/base/profile_range.h"
#include "reknit/models/groups.h"
#include "reknit/models/saved.h"

#include <algorithm>
#include <mutex>

namespace reknit {
namespace {

Attend attend_packed(const ModelSpec& spec, const ops::Packing& packing, const at::Tensor& slopes,
                     const ops::Dropout& dropout = {}) {
  return [&spec, &packing, slopes, dropout](const at::Tensor& qkv) {
    return ops::attention(qkv, spec.head_layout(), packing, attention_scale(spec), slopes, dropout);
  };
}

ops::Dropout embed_dropout(const ModelSpec& spec, const TokenBatch& batch) {
  return {spec.embed_dropout, 0, batch.dropout_keys};
}

/// Marks `saved` as used up. `kept` is what a forward of this backward leaves.
Saved& consume(const std::shared_ptr<Saved>& saved, at::Tensor Saved::*kept) {
  REKNIT_INVARIANT(saved != nullptr && !saved->consumed && ((*saved).*kept).defined(),
                   "a backward was asked for without a forward of its own");
  saved->consumed = true;
  return *saved;
}

/// x of the last token of each sequence [B, H]; zeros where it is empty.
at::Tensor last_rows(const at::Tensor& x, const ops::Packing& packing) {
  if (packing.num_tokens() == 0) {
    return x.new_zeros({packing.num_sequences(), x.size(1)});
  }
  const at::Tensor ends = packing.offsets_device.slice(0, 1).to(at::kLong);
  at::Tensor rows = x.index_select(0, (ends - 1).clamp_min_(0));
  if (std::find(packing.lengths.begin(), packing.lengths.end(), 0) != packing.lengths.end()) {
    const at::Tensor begins = packing.offsets_device.slice(0, 0, packing.num_sequences());
    rows.masked_fill_((ends == begins).unsqueeze(1), 0);
  }
  return rows;
}

void require_token(int64_t token, const ModelSpec& spec) {
  require<InputError>(token >= 0 && token < spec.vocab, "token ", token,
                      " is not one of the model's ", spec.vocab);
}

}  // namespace

/// The ALiBi slopes on each device that asked for them; undefined without ALiBi.
class Decoder::DeviceSlopes {
 public:
  explicit DeviceSlopes(const std::vector<float>& slopes) {
    if (!slopes.empty()) {
      copies_.push_back(at::tensor(slopes, at::kFloat));
    }
  }

  at::Tensor on(c10::Device device) {
    const std::lock_guard lock(mutex_);
    if (copies_.empty()) {
      return {};
    }
    for (const at::Tensor& copy : copies_) {
      if (copy.device() == device) {
        return copy;
      }
    }
    copies_.push_back(copies_.front().to(device));
    return copies_.back();
  }

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> copies_;
};

TokenBatch TokenBatch::of(const std::vector<int64_t>& tokens, std::vector<int64_t> lengths,
                          const ModelSpec& spec, c10::Device device) {
  for (const int64_t token : tokens) {
    require_token(token, spec);
  }
  for (const int64_t length : lengths) {
    spec.require_length(length);
  }
  return {to_device(at::tensor(tokens, at::kLong), device),
          ops::Packing::of(std::move(lengths), device)};
}

Decoder::Decoder(ModelSpec spec, std::shared_ptr<const BlockReduce> reduce)
    : spec_(std::move(spec)),
      reduce_(reduce ? std::move(reduce) : std::make_shared<BlockReduce>()),
      slopes_(std::make_shared<DeviceSlopes>(spec_.alibi_slopes())) {}

Decoder::~Decoder() = default;

std::vector<GroupSpec> Decoder::groups() const {
  return model_groups(spec_);
}

std::vector<GroupId> Decoder::forward_order() const {
  std::vector<GroupId> order;
  for (GroupId group = embed_group(); group <= head_group(spec_); ++group) {
    order.push_back(group);
  }
  if (spec_.tied_output()) {
    order.push_back(embed_group());
  }
  return order;
}

void Decoder::check(const TokenBatch& batch) const {
  spec_.require_length(batch.packing.max_length);
  REKNIT_INVARIANT(batch.tokens.dim() == 1 && batch.tokens.size(0) == batch.packing.num_tokens(),
                   "tokens of shape ", batch.tokens.sizes(), " for a packing of ",
                   batch.packing.num_tokens());
}

BlockDropout Decoder::dropout_of(const TokenBatch& batch, int64_t layer) const {
  constexpr uint64_t kSites = 3;  // of a block; site 0 is the embedding's
  const uint64_t first = static_cast<uint64_t>(layer) * kSites + 1;
  return {{spec_.attention_dropout, first, batch.dropout_keys},
          {spec_.hidden_dropout, first + 1, batch.dropout_keys},
          {spec_.hidden_dropout, first + 2, batch.dropout_keys}};
}

void Decoder::require_head(bool value_head) const {
  REKNIT_INVARIANT(spec_.value_head == value_head, "this ", spec_.model_type, " model has ",
                   spec_.value_head ? "a value head and no logits" : "logits and no value head");
}

at::Tensor Decoder::embed(ParamSource& params, const at::Tensor& tokens,
                          const at::Tensor& positions, Phase phase, Saved* saved) const {
  const Full group = params.full(embed_group(), phase);
  return embed_forward(spec_, group, tokens, positions, saved ? &saved->embed : nullptr);
}

at::Tensor Decoder::blocks_forward(ParamSource& params, const TokenBatch& batch, Phase phase,
                                   Saved* saved) const {
  check(batch);
  const at::Tensor& positions =
      batch.positions.defined() ? batch.positions : batch.packing.positions;
  at::Tensor x = embed(params, batch.tokens, positions, phase, saved);
  x = ops::dropout(x, embed_dropout(spec_, batch));
  const at::Tensor slopes = slopes_->on(x.device());
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    BlockSaved* keep = nullptr;
    BlockSaved dropped;  // computed as it will be again: inference may round elsewhere
    if (saved && saved->checkpointing.recomputes(layer)) {
      saved->block_inputs[layer] = x;
      keep = &dropped;
    } else if (saved) {
      keep = &saved->blocks[layer];
    }
    const BlockDropout dropout = dropout_of(batch, layer);
    const Attend attend = attend_packed(spec_, batch.packing, slopes, dropout.attention);
    const ProfileRange range("block forward", layer);
    const Full group = params.full(block_group(layer), phase);
    x = block_forward(spec_, group, x, attend, *reduce_, keep, dropout);
  }
  return x;
}

void Decoder::head_forward(ParamSource& params, const at::Tensor& x, Phase phase, Saved* saved,
                           const ReadHidden& read) const {
  const HeadParams at_head = HeadParams::of(spec_);
  at::Tensor hidden;
  {
    const Full group = params.full(head_group(spec_), phase);
    hidden = reknit::head_forward(spec_, group, x, saved ? &saved->head : nullptr);
    if (!spec_.tied_output()) {
      read(hidden, group[spec_.value_head ? at_head.value : at_head.table]);
    }
  }
  if (spec_.tied_output()) {
    const Full group = params.full(embed_group(), phase);
    read(hidden, group[EmbedParams::of(spec_).tokens]);
  }
  if (saved) {
    saved->hidden = hidden;
  }
}

at::Tensor Decoder::head_backward(ParamSource& params, Saved& saved,
                                  const ReadHiddenBackward& read) const {
  const HeadParams at_head = HeadParams::of(spec_);
  at::Tensor d_hidden;
  if (spec_.tied_output()) {
    const Full group = params.full(embed_group(), Phase::kBackward);
    Gradients gradients = params.gradients(embed_group());
    const int table = EmbedParams::of(spec_).tokens;
    d_hidden = read(group[table], gradients[table]);
    params.reduce(std::move(gradients), /*last=*/false);
  }
  const Full group = params.full(head_group(spec_), Phase::kBackward);
  Gradients gradients = params.gradients(head_group(spec_));
  if (!spec_.tied_output()) {
    const int output = spec_.value_head ? at_head.value : at_head.table;
    d_hidden = read(group[output], gradients[output]);
  }
  return finish_head_backward(params, group, std::move(gradients), saved, d_hidden);
}

at::Tensor Decoder::finish_head_backward(ParamSource& params, const Full& group,
                                         Gradients gradients, Saved& saved,
                                         at::Tensor d_hidden) const {
  saved.hidden.reset();
  at::Tensor d_x =
      reknit::head_backward(spec_, group, gradients, d_hidden, std::exchange(saved.head, {}));
  params.reduce(std::move(gradients));
  return d_x;
}

void Decoder::blocks_backward(ParamSource& params, Saved& saved, at::Tensor d_x) const {
  const ops::Packing& packing = saved.batch.packing;
  const at::Tensor slopes = slopes_->on(d_x.device());
  for (int64_t layer = spec_.layers - 1; layer >= 0; --layer) {
    const BlockDropout dropout = dropout_of(saved.batch, layer);
    const ProfileRange range("block backward", layer);
    const Full group = params.full(block_group(layer), Phase::kBackward);
    BlockSaved block = std::exchange(saved.blocks[layer], {});
    if (saved.checkpointing.recomputes(layer)) {
      const Attend attend = attend_packed(spec_, packing, slopes, dropout.attention);
      const at::Tensor x = std::exchange(saved.block_inputs[layer], {});
      block = block_recompute(spec_, group, x, attend, *reduce_, dropout);
    }
    Gradients gradients = params.gradients(block_group(layer));
    d_x = block_backward(spec_, group, gradients, d_x, std::move(block), packing, slopes, dropout);
    params.reduce(std::move(gradients));
  }
  d_x = ops::dropout(d_x, embed_dropout(spec_, saved.batch));
  const Full group = params.full(embed_group(), Phase::kBackward);
  Gradients gradients = params.gradients(embed_group());
  embed_backward(spec_, group, gradients, d_x, std::exchange(saved.embed, {}));
  params.reduce(std::move(gradients));
}

std::shared_ptr<Saved> Decoder::start_saving(const TokenBatch& batch,
                                             Checkpointing checkpointing) const {
  auto saved = std::make_shared<Saved>();
  saved->batch = batch;
  saved->checkpointing = checkpointing;
  saved->blocks.resize(static_cast<size_t>(spec_.layers));
  saved->block_inputs.resize(static_cast<size_t>(spec_.layers));
  return saved;
}

at::Tensor Decoder::forward(ParamSource& params, const TokenBatch& batch, Phase phase) const {
  const at::Tensor x = blocks_forward(params, batch, phase, nullptr);
  const Full group = params.full(head_group(spec_), phase);
  return reknit::head_forward(spec_, group, x, nullptr);
}

ops::TokenLogprobs Decoder::logprobs(ParamSource& params, const TokenBatch& batch,
                                     const at::Tensor& targets, Phase phase, bool with_entropy,
                                     std::shared_ptr<Saved>* saved,
                                     Checkpointing checkpointing) const {
  require_head(/*value_head=*/false);
  const auto keep = saved ? start_saving(batch, checkpointing) : nullptr;
  const at::Tensor x = blocks_forward(params, batch, phase, keep.get());
  ops::TokenLogprobs out;
  head_forward(params, x, phase, keep.get(), [&](const at::Tensor& hidden, const ParamView& table) {
    out = ops::token_logprobs(hidden, table, targets, spec_.vocab, with_entropy);
  });
  if (keep) {
    keep->targets = targets;
    keep->logprobs = out;
    *saved = keep;
  }
  return out;
}

void Decoder::logprobs_backward(ParamSource& params, std::shared_ptr<Saved> saved,
                                const at::Tensor& d_logp) const {
  Saved& kept = consume(saved, &Saved::targets);
  const auto read = [&](const ParamView& table, const at::Tensor& d_table) {
    return ops::token_logprobs_backward(d_logp, kept.hidden, table, kept.targets, kept.logprobs,
                                        spec_.vocab, d_table);
  };
  blocks_backward(params, kept, head_backward(params, kept, read));
}

ops::TokenLogprobs Decoder::learn_logprobs(ParamSource& params, const TokenBatch& batch,
                                           const at::Tensor& targets, const at::Tensor& d_logp,
                                           std::shared_ptr<Saved>* saved,
                                           Checkpointing checkpointing) const {
  require_head(/*value_head=*/false);
  const auto keep = start_saving(batch, checkpointing);
  const at::Tensor x = blocks_forward(params, batch, Phase::kForward, keep.get());
  const GroupId head = head_group(spec_);
  const auto learn = [&](const at::Tensor& hidden, const ParamView& table,
                         const at::Tensor& d_table) {
    return ops::learn_token_logprobs(d_logp, hidden, table, targets, spec_.vocab, d_table);
  };
  ops::LearnedLogprobs learned;
  if (spec_.tied_output()) {
    at::Tensor hidden;
    {
      const Full group = params.full(head, Phase::kForward);
      hidden = reknit::head_forward(spec_, group, x, &keep->head);
    }
    const Full group = params.full(embed_group(), Phase::kForward);
    Gradients gradients = params.gradients(embed_group());
    const int table = EmbedParams::of(spec_).tokens;
    learned = learn(hidden, group[table], gradients[table]);
    params.reduce(std::move(gradients), /*last=*/false);
  }
  const Full group = params.full(head, spec_.tied_output() ? Phase::kBackward : Phase::kForward);
  Gradients gradients = params.gradients(head);
  if (!spec_.tied_output()) {
    const int table = HeadParams::of(spec_).table;
    learned =
        learn(reknit::head_forward(spec_, group, x, &keep->head), group[table], gradients[table]);
  }
  keep->d_x = finish_head_backward(params, group, std::move(gradients), *keep, learned.d_hidden);
  *saved = keep;
  return learned.logprobs;
}

void Decoder::learn_backward(ParamSource& params, std::shared_ptr<Saved> saved) const {
  Saved& kept = consume(saved, &Saved::d_x);
  blocks_backward(params, kept, std::exchange(kept.d_x, {}));
}

at::Tensor Decoder::values(ParamSource& params, const TokenBatch& batch, Phase phase,
                           std::shared_ptr<Saved>* saved, Checkpointing checkpointing) const {
  require_head(/*value_head=*/true);
  const auto keep = saved ? start_saving(batch, checkpointing) : nullptr;
  const at::Tensor x = blocks_forward(params, batch, phase, keep.get());
  at::Tensor out;
  head_forward(params, x, phase, keep.get(),
               [&](const at::Tensor& hidden, const ParamView& value_head) {
                 out = ops::linear(hidden, value_head, {}).squeeze(1).to(at::kFloat);
               });
  if (keep) {
    *saved = keep;
  }
  return out;
}

void Decoder::values_backward(ParamSource& params, std::shared_ptr<Saved> saved,
                              const at::Tensor& d_values) const {
  Saved& kept = consume(saved, &Saved::hidden);
  const auto read = [&](const ParamView& value_head, const at::Tensor& d_value_head) {
    const at::Tensor d_out = d_values.to(kept.hidden.scalar_type()).unsqueeze(1);
    return ops::linear_backward(d_out, kept.hidden, value_head, d_value_head, {});
  };
  blocks_backward(params, kept, head_backward(params, kept, read));
}

at::Tensor Decoder::read_logits(ParamSource& params, const at::Tensor& x) const {
  at::Tensor out;
  head_forward(
      params, x, Phase::kGenerate, nullptr,
      [&](const at::Tensor& hidden, const ParamView& table) { out = ops::logits(hidden, table); });
  return out;
}

at::Tensor Decoder::prefill(ParamSource& params, const TokenBatch& batch,
                            const KvView& cache) const {
  require_head(/*value_head=*/false);
  check(batch);
  at::Tensor x = embed(params, batch.tokens, batch.packing.positions, Phase::kGenerate, nullptr);
  const Attend attend = attend_packed(spec_, batch.packing, slopes_->on(x.device()));
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    const auto attend_and_cache = [&](const at::Tensor& qkv) {
      ops::cache_prompts(qkv, spec_.head_layout(), batch.packing, cache.slots(),
                         cache.layer(layer));
      return attend(qkv);
    };
    const Full group = params.full(block_group(layer), Phase::kGenerate);
    x = block_forward(spec_, group, x, attend_and_cache, *reduce_, nullptr);
  }
  return read_logits(params, last_rows(x, batch.packing));
}

at::Tensor Decoder::decode(ParamSource& params, const at::Tensor& tokens,
                           const KvView& cache) const {
  require_head(/*value_head=*/false);
  at::Tensor x = embed(params, tokens, cache.lengths(), Phase::kGenerate, nullptr);
  const at::Tensor slopes = slopes_->on(x.device());
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    const auto attend = [&](const at::Tensor& qkv) {
      return ops::AttentionOut{
          .out = ops::attention_decode(qkv, spec_.head_layout(), cache.layer(layer), cache.slots(),
                                       cache.lengths(), attention_scale(spec_), slopes)};
    };
    const Full group = params.full(block_group(layer), Phase::kGenerate);
    x = block_forward(spec_, group, x, attend, *reduce_, nullptr);
  }
  return read_logits(params, x);
}

}  // namespace reknit
