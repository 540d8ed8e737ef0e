// The checkpoints in tests/golden/deepspeed and the sequences that they were trained with.
#pragma once

#include "tests/checkpoint/checkpoint_support.h"

#include <filesystem>
#include <string>

namespace reknit {

inline std::string deepspeed_fixture(const std::string& name) {
  return (std::filesystem::path(REKNIT_TEST_DATA).parent_path() / "golden/deepspeed" / name)
      .string();
}

}  // namespace reknit
