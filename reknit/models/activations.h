// How much memory a forward and backward of a decoder takes besides its parameters, and how
// much it computes: pure arithmetic, in step with what block.cpp and decoder.cpp keep.
#pragma once

#include "reknit/models/decoder.h"

#include <cstdint>

namespace reknit {

/// One micro-batch of a rank.
struct BatchShape {
  int64_t sequences = 1;
  int64_t length = 1;  ///< tokens of the longest; all are taken to be as long
  int64_t tokens() const { return sequences * length; }
};

struct ActivationBytes {
  int64_t kept = 0;       ///< what stays from the forward to the backward
  int64_t transient = 0;  ///< the most that comes on top in a forward or backward
  int64_t workspace = 0;  ///< the most that attention and logits take for themselves
  int64_t peak() const { return kept + transient + workspace; }
};

/// `dtype` of weights and activations.
ActivationBytes training_activations(const ModelSpec& spec, const BatchShape& batch,
                                     at::ScalarType dtype, Checkpointing checkpointing, bool cuda);

/// The same for generation of `batch.sequences` answers to prompts of `batch.length` tokens:
/// nothing is kept.
ActivationBytes generation_activations(const ModelSpec& spec, const BatchShape& batch,
                                       at::ScalarType dtype, bool cuda);

/// Elements of all parameters.
int64_t num_parameters(const ModelSpec& spec);

/// The share of the blocks that a backward computes again.
double recomputed_share(const ModelSpec& spec, const Checkpointing& checkpointing);

/// Floating-point operations (a multiplication and an addition are two) of a forward over the
/// batch; a backward takes twice as many, recomputed blocks the forward's once more.
struct ForwardWork {
  double blocks = 0;
  double output = 0;  ///< projections and the output table
  double scores = 0;  ///< attention's part of `blocks`
  double total() const { return blocks + output; }
};
ForwardWork forward_work(const ModelSpec& spec, const BatchShape& batch);

/// True where attention writes its scores down. With ALiBi it does so on GPUs too where sums
/// have a fixed order, or sequences are short.
bool attention_is_dense(const ModelSpec& spec, const BatchShape& batch, at::ScalarType dtype,
                        bool cuda);

}  // namespace reknit
