// DeepSpeed-Chat's flags of step 3, and what becomes of each here.
#pragma once

#include "apps/foreign_flags.h"

namespace reknit {

const ForeignFlags& deepspeed_chat_step3();

}  // namespace reknit
