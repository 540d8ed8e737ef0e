// Work that ranks do together with their host: an error of one ends the wait of the others.
#pragma once

#include "reknit/base/error_text.h"
#include "reknit/comm/communicator.h"

#include <exception>

namespace reknit {

/// body(), which is collective over `world`. What it throws on this rank aborts the
/// communicator of all with its sentence, so that nobody waits for a rank that has failed.
template <class Body>
auto together(Communicator& world, Body body) {
  try {
    return body();
  } catch (const AbortedError&) {
    throw;
  } catch (const std::exception& error) {
    world.abort(first_line(error));
    throw;
  }
}

}  // namespace reknit
