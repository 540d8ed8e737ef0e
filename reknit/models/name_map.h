// Which Hugging Face tensor holds which piece of which parameter. Pure: names and
// numbers only, no tensors and no files.
#pragma once

#include "reknit/models/spec.h"
#include "reknit/store/param_ref.h"

#include <string>
#include <vector>

namespace reknit {

/// Rows [row_begin, row_end) of parameter `param` of `group` are the tensor `hf_name`
/// (q, k and v are three tensors of one fused parameter). The rows that no piece covers
/// are the padding of a padded vocabulary: nobody reads them; fill them with zeros.
struct NamePiece {
  std::string hf_name;
  GroupId group = 0;
  int param = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  bool transposed = false;  ///< stored as [in, out] (GPT-2's Conv1D)
  /// A second name for rows that another piece holds (a tied lm_head): a file may have
  /// it or not; readers skip it, writers leave it out.
  bool optional = false;
};

/// The shape in which a folder stores the piece of `param`.
std::vector<int64_t> stored_shape(const ParamSpec& param, const NamePiece& piece);

/// Every tensor of the model's folder, exactly as transformers names them for its
/// ...ForCausalLM class, or for ...ForSequenceClassification (`score.weight`, one label)
/// if the spec has a value head.
std::vector<NamePiece> name_map(const ModelSpec& spec);

/// How a file's tensor name may differ from the canonical one: strips or adds the
/// prefixes that transformers and DeepSpeed-Chat write ("model.", "transformer.",
/// "rwtransformer.", "rwtranrsformer.", "module.", "base_model."). Returns for each
/// canonical name the name found among `available`, or an empty string. Besides:
/// a value head is found as `v_head.weight` (preferred) or `score.weight`; a token table
/// that was left out because lm_head is tied to it is found as `lm_head.weight`.
/// Two names that differ in prefixes only and neither is exact: InputError naming both.
std::vector<std::string> match_names(const std::vector<NamePiece>& pieces,
                                     const std::vector<std::string>& available);

/// The name of the value head's tensor among `available`; empty: there is none. A
/// `score.weight` counts only if the caller finds it to have one row (one label).
std::string find_value_head(const std::vector<std::string>& available);

/// True for tensors that files of this family carry though they are no parameters
/// (causal masks of GPT-2 and the like): readers skip them.
bool is_buffer_name(const std::string& file_name);

/// The class that config.json's "architectures" names: "OPTForCausalLM", or
/// "OPTForSequenceClassification" (to be written with num_labels 1) with a value head.
std::string hf_architecture(const ModelSpec& spec);

/// How a parameter of a new model is filled; see init_values.h.
enum class InitKind { kNormal, kOnes, kZeros };
InitKind init_kind(const ModelSpec& spec, const ParamSpec& param);
/// Standard deviation where init_kind is kNormal (GPT-2 scales its residual projections).
double init_std(const ModelSpec& spec, const ParamSpec& param);

}  // namespace reknit
