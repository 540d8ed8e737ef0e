// The checkpoints in tests/golden/deepspeed, which DeepSpeed wrote.
#pragma once

#include "tests/checkpoint/checkpoint_support.h"

#include <string>

namespace reknit {

inline std::string deepspeed_fixture(const std::string& name) {
  return (source_root() / "tests/golden/deepspeed" / name).string();
}

}  // namespace reknit
