// What torch keeps for the whole process about sums on GPUs; docs/decisions.md says why.
#pragma once

namespace reknit {

/// Partial sums of 16-bit products stay in fp32. Called where a rank on a GPU starts; the
/// first call decides.
void keep_partial_sums_wide();

/// Whether sums on GPUs whose order is free are taken in a fixed one, so that a repeated run
/// gives the same bits (the backward of flash attention is then slower). Off at first; to be
/// set before the first rank starts. On CPU sums always have one order.
void fix_order_of_gpu_sums(bool fixed);

}  // namespace reknit
