// Ranges in NVTX.
#include "reknit/base/profile_range.h"

#include <nvtx3/nvToolsExt.h>

namespace reknit {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("reknit");
  return handle;
}

}  // namespace

ProfileRange::ProfileRange(const char* name, int64_t number) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  if (number >= 0) {
    attributes.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    attributes.payload.llValue = number;
  }
  nvtxDomainRangePushEx(domain(), &attributes);
}

ProfileRange::~ProfileRange() {
  nvtxDomainRangePop(domain());
}

}  // namespace reknit
