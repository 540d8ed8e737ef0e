// Ranks that are processes, on CPU: libtorch's Gloo process group.
#pragma once

#include "reknit/comm/communicator.h"

namespace reknit {

/// Where the processes of a job meet.
struct Rendezvous {
  std::string host;
  int port = 0;
  int rank = 0;
  int world = 1;
  bool agent_store = false;  ///< the launcher already serves the store (torchrun)
  std::string key_prefix;    ///< e.g. the restart count
};

/// Collective over the processes. Start-up that waits says every 30 s which ranks
/// are missing and throws CommError after the timeout.
std::unique_ptr<Communicator> make_gloo(const Rendezvous& rendezvous, CommOptions options = {});

}  // namespace reknit
