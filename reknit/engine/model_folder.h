// A model's Hugging Face folder: the pieces of its parameters, there and back.
#pragma once

#include "reknit/checkpoint/hf_folder.h"
#include "reknit/models/name_map.h"

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <vector>

namespace reknit {

/// Those pieces of name_map that a folder holds: each tied tensor once.
std::vector<NamePiece> stored_pieces(const ModelSpec& spec);

/// The tensors that somebody offers as a model, and its pieces.
struct FoundPieces {
  std::vector<NamePiece> pieces;    ///< name_map's
  std::vector<std::string> names;   ///< of each piece's tensor; empty: there is none
  std::vector<std::string> unused;  ///< tensors that are no piece
  std::string wrong;                ///< pieces that are missing or of another shape, listed
};
/// Names and shapes only. A value head is not listed as missing: the caller knows whether it is.
FoundPieces find_pieces(const ModelSpec& spec, const std::vector<TensorInfo>& tensors);
/// True for the piece that find_pieces does not list.
bool is_value_head(const ModelSpec& spec, const NamePiece& piece);

/// What a folder stores of the piece: a view of the whole parameter's values.
at::Tensor stored_of(const NamePiece& piece, const at::Tensor& param);
/// The way back: the piece's elements as the parameter has them, flat.
at::Tensor elements_of(const NamePiece& piece, const at::Tensor& stored);
/// The place of the first of them among the parameter's elements.
int64_t first_element(const NamePiece& piece, const ParamSpec& param);

/// What write_model_folder is given beside values. Not owned.
struct ModelFolder {
  const ModelSpec& spec;
  const nlohmann::json& config;             ///< of the model's source; what is written fits spec
  const nlohmann::json& generation_config;  ///< may be null
  std::string tokenizer_folder;             ///< whose files come along; empty: none
  at::ScalarType dtype;
};

/// Throws UsageError if a folder that is written at `out` would replace the checkpoint's, one
/// above it, or one inside it: what is to be read.
void keep_checkpoint(const std::string& checkpoint, const std::string& out);

/// Writes the folder as write_hf_folder does, with its errors. `read` gives what is stored of a
/// piece, once each, in the order of stored_pieces; it is rounded to the dtype. Returns what was
/// written.
std::vector<TensorInfo> write_model_folder(
    const std::string& path, const ModelFolder& folder,
    const std::function<at::Tensor(const NamePiece&, const ParamSpec&)>& read,
    IfPresent if_present);

}  // namespace reknit
