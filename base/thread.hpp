#pragma once
// Starts threads, with a message for the user where the system gives none.

#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "base/text.hpp"

namespace gossamer {

/// A std::thread or std::jthread that runs `body`. Throws std::runtime_error when the system gives
/// no thread.
template <class Thread = std::thread, class Body>
Thread start_thread(Body body) {
  try {
    return Thread(std::move(body));
  } catch (const std::system_error& error) {
    throw std::runtime_error(
        concat("the system gives this process no more threads (", error.code().message(),
               "): let it have more (ulimit -u, or the pids limit of a container), or take fewer "
               "ranks and threads"));
  }
}

}  // namespace gossamer
