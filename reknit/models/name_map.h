// Which Hugging Face tensor holds which piece of which parameter.
#pragma once

#include "reknit/models/spec.h"
#include "reknit/store/param_ref.h"

#include <string>
#include <vector>

namespace reknit {

/// Rows [row_begin, row_end) of parameter `param` of `group` are the tensor `hf_name`
/// (q, k and v are three tensors of one fused parameter).
struct NamePiece {
  std::string hf_name;
  GroupId group = 0;
  int param = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  bool transposed = false;  ///< stored as [in, out] (GPT-2's Conv1D)
  bool optional = false;    ///< may be absent (a tied lm_head written or not)
};

/// Every tensor of the model's folder, exactly as transformers names them (canonical
/// names, with the base-model prefix).
std::vector<NamePiece> name_map(const ModelSpec& spec);

/// How a file's tensor name may differ from the canonical one: strips or adds the
/// prefixes that transformers and DeepSpeed-Chat write ("model.", "transformer.",
/// "rwtransformer.", "rwtranrsformer.", "module."). Returns for each canonical name the
/// name found among `available`, or an empty string.
std::vector<std::string> match_names(const std::vector<NamePiece>& pieces,
                                     const std::vector<std::string>& available);

/// How `reknit init` fills a parameter.
enum class InitKind { kNormal, kOnes, kZeros };
InitKind init_kind(const ModelSpec& spec, const ParamSpec& param);

}  // namespace reknit
