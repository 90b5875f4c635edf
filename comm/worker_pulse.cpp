#include "comm/worker_pulse.hpp"

#include <algorithm>
#include <chrono>

#include "base/text.hpp"

namespace gossamer {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);
// A longer gap between two looks means that this process was stopped, and the worker with it.
constexpr double kLongestGap = 0.5;

}  // namespace

void WorkerPulse::wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                       const OpLabel& label, const std::function<bool()>& is_over) const {
  using Clock = std::chrono::steady_clock;
  std::uint64_t last_turns = turns_.load(std::memory_order_relaxed);
  auto last_look = Clock::now();
  double silent_s = 0.0;
  while (!changed.wait_for(lock, kLook, is_over)) {
    if (while_waiting_) {
      // It may take its time, and the worker needs the lock.
      lock.unlock();
      while_waiting_();
      lock.lock();
    }
    const auto now = Clock::now();
    const double gap_s = std::chrono::duration<double>(now - last_look).count();
    const std::uint64_t turns = turns_.load(std::memory_order_relaxed);
    silent_s = turns == last_turns ? silent_s + std::min(gap_s, kLongestGap) : 0.0;
    last_turns = turns;
    last_look = now;
    if (silent_s <= patience_s_) continue;
    throw CommError(
        {.rank = rank_, .label = label},
        concat("the communication thread of this rank has done nothing for ", shortest(patience_s_),
               " s: it hangs in a call of MPI or of the system that does not return; "
               "start the run again"));
  }
}

}  // namespace gossamer
