// The orthogonal matrix near a matrix, by Newton-Schulz iteration.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reknit {

/// Of a bf16 matrix [rows, columns] one of about orthogonal rows (or columns, where there
/// are more rows), all singular values between 0.7 and 1.2 after 5 steps. The quintic
/// iteration of Muon: x <- 3.4445 x - 4.775 (x x') x + 2.0315 (x x')^2 x, from x divided by
/// its Frobenius norm. Queued on the compute stream.
at::Tensor newton_schulz(const at::Tensor& matrix, int64_t steps);

}  // namespace reknit
