// Expected values that a Python package wrote.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace reknit {

/// The checkout's folder.
std::filesystem::path source_root();

/// Runs tests/golden/`script` with `arguments`; what it prints goes into `log`. Throws
/// std::runtime_error with the log's text if it fails.
void run_golden_script(const std::string& script, const std::vector<std::string>& arguments,
                       const std::filesystem::path& log);

/// The folder filled by tests/golden/NAME.py, which is run with the folder as its one
/// argument the first time; later test processes find it in the temporary folder (keyed
/// by the script's text). If REKNIT_GOLDEN_DIR is set, its subfolder NAME is taken as
/// it is and no Python is run. Throws std::runtime_error.
std::filesystem::path golden_folder(const std::string& name);

/// All tensors of a safetensors file, on CPU.
std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& file);

}  // namespace reknit
