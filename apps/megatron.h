// Megatron's (and Megatron-DeepSpeed's) flags for GPT pretraining, and what becomes of each.
#pragma once

#include "apps/foreign_flags.h"

namespace reknit {

const ForeignFlags& megatron_pretrain();

}  // namespace reknit
