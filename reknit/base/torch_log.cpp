#include "reknit/base/torch_log.h"

#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>

namespace reknit {

void quiet_torch() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, c10::GLOG_FATAL);
  }
}

}  // namespace reknit
