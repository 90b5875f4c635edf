#pragma once
// What backends need for Communicator::share() and await().
//
// Processes find each other's memory through /proc. The memory has no name in a file system. So
// nothing is left behind when ranks are killed, and the size of /dev/shm is no limit.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/buffer.hpp"
#include "comm/counter.hpp"
#include "comm/worker/progress_worker.hpp"

namespace gossamer {

/// Over when all counters have come. `awaited` names world ranks. `check` is called before every
/// look at the counters, and may throw. `is_woken`: whether who raises a counter tells the worker.
std::unique_ptr<Operation> make_await(
    std::vector<Awaited> awaited, std::function<void()> check = [] {}, bool is_woken = false);

/// Communicator::share() for processes. Collective, with two gathers. `is_near`: for every member,
/// whether it runs on this rank's host. Where the system offers no such memory, no member is
/// reached.
std::vector<Buffer> share_between_processes(Communicator& communicator, std::int64_t bytes,
                                            const std::vector<bool>& is_near);

}  // namespace gossamer
