// Kernels of a captured decode step that start before the one ahead of them has ended.
#pragma once

namespace reknit::kernels {

/// While one lives, the kernels of a decode step that this thread queues may start early:
/// each waits for what it reads of the kernels ahead, but fetches weights and old keys
/// before that. So only where nothing queued in the scope writes those: in the capture
/// of a decode step, whose weights are pinned. Without effect before compute capability
/// 9.0. Scopes do not nest.
class OverlapScope {
 public:
  explicit OverlapScope(bool supported) { active_ = supported; }
  ~OverlapScope() { active_ = false; }
  OverlapScope(const OverlapScope&) = delete;

  static bool active() { return active_; }

 private:
  inline static thread_local bool active_ = false;
};

}  // namespace reknit::kernels
