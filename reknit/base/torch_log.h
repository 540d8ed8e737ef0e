// What libtorch itself prints.
#pragma once

namespace reknit {

/// From here on libtorch prints nothing less than fatal: what goes wrong is ours to say, once, in
/// a sentence, and its lines add stacks to that. TORCH_CPP_LOG_LEVEL, where it is set, counts.
void quiet_torch();

}  // namespace reknit
