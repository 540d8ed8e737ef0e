// DeepSpeed's checkpoints in runs of ours: going on with one, and its model as a folder.
#pragma once

#include "reknit/checkpoint/deepspeed_folder.h"
#include "reknit/checkpoint/hf_folder.h"
#include "reknit/engine/model.h"
#include "reknit/engine/trainer.h"

#include <string>

namespace reknit {

/// Takes masters, optimizer states, step counts and loss scale of `folder`, under any
/// placement of `model`. Local: every rank reads the files and keeps its part; on all ranks
/// alike, between passes. Before a value changes: InputError naming the parameters that are
/// missing, of another shape, unknown to the model, or frozen there and trained here, or the
/// states of another optimizer. A loss scale counts where `model` is fp16 and the folder has a
/// dynamic one.
void load_deepspeed(Model& model, Trainer& trainer, const DeepSpeedFolder& folder);

/// Writes the folder's parameters for transformers, in `dtype`: masters, and frozen ones as
/// they were. `source` is the model's configuration, with the tokenizer files that come along.
/// One process, no ranks. Throws as load_deepspeed and as write_hf_folder, and UsageError for a
/// `path` that lies over the checkpoint.
void export_deepspeed(const DeepSpeedFolder& folder, const HfFolder& source, at::ScalarType dtype,
                      const std::string& path, IfPresent if_present);

/// One sentence on what is taken and what such a folder does not say.
std::string deepspeed_summary(const DeepSpeedFolder& folder);

}  // namespace reknit
