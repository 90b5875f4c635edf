#pragma once
// Counters in memory that the ranks of a host share. They say who has come how far: a rank that
// sees a counter at a value also sees everything that the counter's owner has written before.

#include <atomic>
#include <cstdint>

namespace gossamer {

/// A number that its owner raises (release), and that others read (acquire).
using Counter = std::atomic<std::uint64_t>;
static_assert(Counter::is_always_lock_free, "processes share counters, so they must need no lock");

/// A condition for which an operation waits: the counter reaches `least`.
struct Awaited {
  /// The counter's owner: a member of the communicator, and in an Operation its world rank.
  int peer = 0;
  const Counter* counter = nullptr;
  std::uint64_t least = 0;

  [[nodiscard]] bool has_come() const { return counter->load(std::memory_order_acquire) >= least; }
};

}  // namespace gossamer
