#include "reknit/store/placement.h"

#include "reknit/base/error.h"

namespace reknit {

StoreComms StoreComms::over(std::shared_ptr<Communicator> world, int shard_size) {
  const int size = world->size();
  require<UsageError>(shard_size > 0 && size % shard_size == 0, "a shard group of ", shard_size,
                      " ranks does not divide the world of ", size, " ranks");
  StoreComms comms;
  const int shard_group = world->rank() / shard_size;
  comms.gather = world->split(shard_group, "gather");
  comms.reduce = world->split(shard_group, "reduce");
  if (shard_size < size) {
    comms.replica = world->split(world->rank() % shard_size, "replica");
  }
  comms.world = std::move(world);
  return comms;
}

void StoreComms::abort(const std::string& reason) noexcept {
  for (const auto& comm : {gather, reduce, replica, world}) {
    if (comm) {
      comm->abort(reason);
    }
  }
}

}  // namespace reknit
