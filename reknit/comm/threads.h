// Ranks that are threads of one process, on CPU or sharing GPUs.
#pragma once

#include "reknit/comm/communicator.h"

namespace reknit {

/// `size` communicators of one new group, element r for rank r; hand each to its
/// thread. Sums are taken in rank order, in fp32 for 16-bit inputs, so results are
/// bit-equal from run to run.
///
/// The last rank to join an operation performs it for all: on CPU at once, on CUDA by
/// queueing copies and sums on its own communication stream, ordered after every
/// rank's inputs. An operation whose ranks disagree on kind, count, sizes, dtype or
/// root fails the group with a sentence that names both.
std::vector<std::unique_ptr<Communicator>> make_thread_group(int size, CommOptions options = {});

}  // namespace reknit
