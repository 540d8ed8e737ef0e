// Any bytes as a DeepSpeed config: parsed and judged, or refused with UsageError.
#include "reknit/base/error.h"
#include "reknit/config/deepspeed.h"
#include "reknit/config/json_text.h"
#include "reknit/config/settings.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const nlohmann::json value = reknit::parse_json_text(text, "fuzz");
    reknit::Findings findings;
    const reknit::ResolvedSettings resolved =
        reknit::resolve_settings(value, "fuzz", {reknit::parse_set("fp16.initial_scale_power=12")},
                                 {{"zero_optimization.stage", 3, "--zero-stage"}}, {}, findings);
    for (const reknit::RunShape& shape : {reknit::RunShape{}, reknit::RunShape{8, "a", 2, "b"}}) {
      const reknit::ConfigReading reading =
          reknit::read_deepspeed(resolved.config, shape, "fuzz", resolved.origins);
      const reknit::BatchSizes& batch = reading.batch;
      if (batch.global > 0 && batch.global != batch.micro * batch.accumulation * shape.ranks) {
        std::abort();
      }
      reknit::require_valid(reading.findings);
    }
  } catch (const reknit::UsageError&) {
  }
  return 0;
}
