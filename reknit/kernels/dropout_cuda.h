// Dropout on CUDA, queued on a stream.
#pragma once

#include "reknit/kernels/dropout_rule.h"
#include "reknit/kernels/element.h"

#include <cuda_runtime_api.h>

namespace reknit::kernels {

void drop_rows(Element element, const DropoutRule& rule, const DropoutRows& rows,
               cudaStream_t stream);

}  // namespace reknit::kernels
