// A Hugging Face model folder: its configuration, and its tensors whatever the form.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "reknit/base/atomic_file.h"
#include "reknit/checkpoint/tensor_info.h"

namespace reknit {

/// A folder opened for reading: config.json, generation_config.json, and one of
/// model.safetensors, model.safetensors.index.json, pytorch_model.bin,
/// pytorch_model.bin.index.json, the first that exists. Every file that an index
/// names is opened, and its tensors compared with the index, before the
/// constructor returns; nothing of the weights is read until read(). A cheap
/// handle to immutable state; threads may read at once.
class HfFolder {
 public:
  /// `path_or_name` is a folder, or a model's name in the local Hugging Face cache
  /// (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface); no connection is opened.
  /// Throws InputError: no such folder; a file that is missing or damaged (all
  /// missing files of an index at once); tensors that the index places in a file
  /// that does not hold them (all at once, with the file that does). Warns in the log of
  /// tensors that a file holds though the index does not place them there: they are not read.
  explicit HfFolder(const std::string& path_or_name);

  /// A model that has no weights yet, with the tokenizer files of `tokenizer_folder` (empty:
  /// none), which is also its path.
  static HfFolder without_weights(const nlohmann::json& config,
                                  const std::string& tokenizer_folder);

  /// The folder, after a look-up in the cache.
  const std::string& path() const;
  const nlohmann::json& config() const;
  /// Null where the folder has none.
  const nlohmann::json& generation_config() const;

  /// In the order of the files' data.
  const std::vector<TensorInfo>& tensors() const;
  /// Null if there is none of that name.
  const TensorInfo* find(const std::string& name) const;

  /// A host tensor over the mapped file (it outlives this object), in the stored
  /// dtype; not necessarily contiguous. Must not be written to: others may see
  /// it. Throws InputError if there is none of that name.
  at::Tensor read(const std::string& name) const;

 private:
  struct State;
  explicit HfFolder(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

/// The folder that `path_or_name` stands for. Throws InputError if there is none.
std::string find_hf_folder(const std::string& path_or_name);

/// What write_hf_folder writes.
struct HfFolderContents {
  const nlohmann::json* config = nullptr;             ///< not owned; required
  const nlohmann::json* generation_config = nullptr;  ///< not owned; may be null
  std::vector<TensorInfo> tensors;                    ///< tied tensors once
  std::string tokenizer_folder;                       ///< whose tokenizer files come along
  int64_t max_shard_bytes = 5'000'000'000;
};

/// The part of write_hf_folder that is no weights, into a folder that is made if it is absent:
/// configurations (`generation_config` may be null) and the tokenizer files of
/// `tokenizer_folder` (empty: none). Returns what was written, relative to `folder`.
std::vector<std::string> write_hf_texts(const std::string& folder, const nlohmann::json& config,
                                        const nlohmann::json& generation_config,
                                        const std::string& tokenizer_folder);

/// Writes a folder that transformers loads: model.safetensors, or shards and an
/// index if it were larger than max_shard_bytes. `read` is called once for each
/// tensor, in the order of contents.tensors, and holds the only copy: a large
/// model need not be in memory twice. It may run collectives and may throw. The
/// folder appears under `path` whole or not at all (see AtomicFolder, also for
/// the errors).
void write_hf_folder(const std::string& path, const HfFolderContents& contents,
                     const std::function<at::Tensor(const TensorInfo&)>& read,
                     IfPresent if_present = IfPresent::kRefuse);

}  // namespace reknit
