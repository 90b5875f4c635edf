#pragma once
// The common part of the backends' SharedMemory (communicator.hpp): memory that members on one host
// share.
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

/// Makes the operation of SharedMemory::wait_signals(); it is over when all counters have reached
/// their values. `awaited` names world ranks. The operation calls `check` before every look at the
/// counters; `check` may throw. `is_woken`: true if the rank that raises a counter wakes this
/// rank's worker.
std::unique_ptr<Operation> make_await(
    std::vector<Awaited> awaited, std::function<void()> check = [] {}, bool is_woken = false);

/// SharedMemory::allocate() for ranks that are processes. Collective, with two gathers. `is_near`
/// says for every member whether it runs on this rank's host. Where the system offers no such
/// memory, all parts are empty.
std::vector<Buffer> share_between_processes(Communicator& communicator, std::int64_t bytes,
                                            const std::vector<bool>& is_near);

}  // namespace gossamer
