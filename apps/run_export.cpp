// reknit export: a model out of a checkpoint, as a Hugging Face folder.
#include "reknit/engine/run_export.h"
#include "apps/commands.h"
#include "reknit/checkpoint/hf_config.h"

#include <iostream>

namespace reknit {

int run_export(const ExportOptions& options) {
  RunExport request{.checkpoint = options.checkpoint,
                    .out = options.out,
                    .model = options.model,
                    .if_present = options.overwrite ? IfPresent::kReplace : IfPresent::kRefuse};
  if (options.dtype) {
    request.dtype = scalar_type(*options.dtype);
  }
  const RunExported done = export_run(request);
  std::cout << options.out << ": " << done.model << " of step " << done.step << " from "
            << done.checkpoint << ", " << done.elements << " elements in " << done.tensors
            << " tensors, " << c10::toString(done.dtype) << "\n";
  return 0;
}

}  // namespace reknit
