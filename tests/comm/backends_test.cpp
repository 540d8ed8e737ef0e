#include "tests/comm/backends.h"

#include "reknit/base/rank.h"
#include "reknit/comm/threads.h"

namespace reknit::test {
namespace {

void run_threads(std::vector<std::unique_ptr<Communicator>> group,
                 const std::vector<c10::Device>& devices,
                 const std::function<void(Communicator&)>& body) {
  run_ranks(
      devices, [&](int rank) { body(*group[rank]); },
      [&](const std::string& reason) { group[0]->abort(reason); });
}

Backend threads(int size) {
  return {"threads", size, [size](const auto& options, const auto& body) {
            run_threads(make_thread_group(size, options), std::vector<c10::Device>(size, c10::kCPU),
                        body);
          }};
}

}  // namespace

std::vector<Backend> backends() {
  std::vector<Backend> all;
  for (int size : {1, 2, 3, 5, 8}) {
    all.push_back(threads(size));
  }
  return all;
}

}  // namespace reknit::test
