// A decoder-only model with hand-written forward and backward, over a ParamSource.
//
// Groups, in order: 0 "embed" (token and position embeddings, embedding norm,
// project_in), 1..L "block i", L + 1 "head" (final norm, project_out, v_head or an
// untied output table). A forward uses 0, 1, .., L + 1 and then, for the tied output
// table, 0 again; a backward the reverse. All tokens are packed (no padding).
#pragma once

#include "reknit/kernels/lm_head.h"
#include "reknit/models/seams.h"
#include "reknit/models/spec.h"
#include "reknit/store/param_ref.h"

#include <functional>
#include <memory>
#include <vector>

namespace reknit {

/// Packed input: tokens [N] int64 with the lengths of its sequences. Empty sequences and
/// an empty batch are fine.
struct TokenBatch {
  at::Tensor tokens;
  ops::Packing packing;
  /// [N] int64: places in the position table; undefined: those in the packed sequences.
  at::Tensor positions = {};
  /// [N] int64 on the device, see ops::dropout_keys; undefined: nothing is dropped.
  at::Tensor dropout_keys = {};

  /// From host tokens, concatenated. A token outside the model's vocabulary, or a
  /// sequence without positions, is an InputError naming it: on the device neither
  /// could be checked without waiting.
  static TokenBatch of(const std::vector<int64_t>& tokens, std::vector<int64_t> lengths,
                       const ModelSpec& spec, c10::Device device);
};

/// What a forward leaves for its backward. Consumed by it: memory is given up as the
/// backward goes, and a second backward throws StateError.
class Saved;

/// Which blocks keep only their input and are recomputed in the backward, from the same
/// group lease, bit for bit.
struct Checkpointing {
  int64_t every = 0;          ///< every n-th block, the first one too; 0: none
  int64_t below = INT64_MAX;  ///< of the first blocks only

  bool recomputes(int64_t layer) const { return every > 0 && layer % every == 0 && layer < below; }

  static const Checkpointing kNone;  ///< all activations are kept
  static const Checkpointing kFull;  ///< every block is recomputed
};
inline constexpr Checkpointing Checkpointing::kNone{};
inline constexpr Checkpointing Checkpointing::kFull{1};

struct BlockDropout;

/// Stateless apart from constants: one Decoder may serve several stores and threads.
/// At most one Full and two Gradients (one of them the tied table's) are held at a time.
/// Every forward throws InputError, before any kernel, if a sequence is longer than the
/// model's positions. An exception in a backward drops its Gradients, which poisons.
class Decoder {
 public:
  /// `reduce` null: the identity.
  explicit Decoder(ModelSpec spec, std::shared_ptr<const BlockReduce> reduce = nullptr);
  ~Decoder();

  const ModelSpec& spec() const { return spec_; }
  /// The groups in order, for the store.
  std::vector<GroupSpec> groups() const;
  /// The order in which logprobs and values open groups, and prefill and decode too; a
  /// backward opens them in reverse. forward() leaves out the tied table at the end.
  std::vector<GroupId> forward_order() const;

  /// -> final hidden states [N, embed_dim], what the output table or v_head reads.
  at::Tensor forward(ParamSource& params, const TokenBatch& batch, Phase phase) const;

  /// Log-probabilities of `targets` [N] int64 (-1: none) -> ops::TokenLogprobs. With
  /// `saved` the backward's needs are kept.
  ops::TokenLogprobs logprobs(ParamSource& params, const TokenBatch& batch,
                              const at::Tensor& targets, Phase phase, bool with_entropy,
                              std::shared_ptr<Saved>* saved = nullptr,
                              Checkpointing checkpointing = Checkpointing::kNone) const;
  /// d_logp [N] fp32; opens, fills and reduces every group's gradients.
  void logprobs_backward(ParamSource& params, std::shared_ptr<Saved> saved,
                         const at::Tensor& d_logp) const;

  /// logprobs whose d_logp [N] fp32 is known beforehand: runs the head backwards as well, with
  /// logits that are computed once. -> as logprobs; `saved` is for learn_backward.
  ops::TokenLogprobs learn_logprobs(ParamSource& params, const TokenBatch& batch,
                                    const at::Tensor& targets, const at::Tensor& d_logp,
                                    std::shared_ptr<Saved>* saved,
                                    Checkpointing checkpointing = Checkpointing::kNone) const;
  /// The rest of it: afterwards every group's gradients are filled and being reduced.
  void learn_backward(ParamSource& params, std::shared_ptr<Saved> saved) const;

  /// Values of the value head, one per token: [N] fp32.
  at::Tensor values(ParamSource& params, const TokenBatch& batch, Phase phase,
                    std::shared_ptr<Saved>* saved = nullptr,
                    Checkpointing checkpointing = Checkpointing::kNone) const;
  void values_backward(ParamSource& params, std::shared_ptr<Saved> saved,
                       const at::Tensor& d_values) const;

  /// Generation: runs the packed prompts, fills the cache, returns the fp32 logits of
  /// the last token of each prompt [B, table_rows]; for an empty prompt finite
  /// numbers without meaning.
  at::Tensor prefill(ParamSource& params, const TokenBatch& batch, const KvView& cache) const;
  /// One token per row: tokens [B] int64 at positions cache.lengths() -> logits as above.
  /// Nothing waits for the device, and after the first prefill nothing is created on it
  /// but results: fit for a CUDA graph. See ModelSpec::require_length.
  at::Tensor decode(ParamSource& params, const at::Tensor& tokens, const KvView& cache) const;

 private:
  class DeviceSlopes;
  /// Reads `hidden` [N, embed_dim] with the output table, or with the value head.
  using ReadHidden = std::function<void(const at::Tensor& hidden, const ParamView& output)>;
  /// Its backward: adds into d_output (undefined if frozen) -> d_hidden.
  using ReadHiddenBackward =
      std::function<at::Tensor(const ParamView& output, const at::Tensor& d_output)>;

  void check(const TokenBatch& batch) const;
  void require_head(bool value_head) const;
  at::Tensor embed(ParamSource& params, const at::Tensor& tokens, const at::Tensor& positions,
                   Phase phase, Saved* saved) const;
  at::Tensor blocks_forward(ParamSource& params, const TokenBatch& batch, Phase phase,
                            Saved* saved) const;
  void head_forward(ParamSource& params, const at::Tensor& x, Phase phase, Saved* saved,
                    const ReadHidden& read) const;
  at::Tensor head_backward(ParamSource& params, Saved& saved, const ReadHiddenBackward& read) const;
  at::Tensor finish_head_backward(ParamSource& params, const Full& group, Gradients gradients,
                                  Saved& saved, at::Tensor d_hidden) const;
  void blocks_backward(ParamSource& params, Saved& saved, at::Tensor d_x) const;
  at::Tensor read_logits(ParamSource& params, const at::Tensor& x) const;
  std::shared_ptr<Saved> start_saving(const TokenBatch& batch, Checkpointing checkpointing) const;
  BlockDropout dropout_of(const TokenBatch& batch, int64_t layer) const;

  ModelSpec spec_;
  std::shared_ptr<const BlockReduce> reduce_;
  std::shared_ptr<DeviceSlopes> slopes_;
};

}  // namespace reknit
