#pragma once
// Records the ranks of a world that have left it without an error. A rank that waits only for ranks
// that have left waits in vain, and fails long before its time limit.
//
// Thread safety: any thread may call anything.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

namespace gossamer {

class Attendance {
 public:
  explicit Attendance(std::size_t num_ranks) : has_left_(num_ranks) {}

  void leave(int rank) {
    has_left_.at(static_cast<std::size_t>(rank)).store(true);
    any_has_left_.store(true);
  }
  [[nodiscard]] bool any_has_left() const { return any_has_left_.load(std::memory_order_relaxed); }
  /// Whether there are ranks in the list, and all of them have left.
  [[nodiscard]] bool all_have_left(const std::vector<int>& ranks) const {
    return !ranks.empty() && std::ranges::all_of(ranks, [this](int rank) {
      return has_left_.at(static_cast<std::size_t>(rank)).load();
    });
  }

 private:
  std::vector<std::atomic<bool>> has_left_;
  std::atomic<bool> any_has_left_ = false;
};

}  // namespace gossamer
