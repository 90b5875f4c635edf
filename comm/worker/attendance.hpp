#pragma once
// Records how far the ranks of a world have come: the steps that they have begun, and the ranks
// that have left without an error. A rank that waits only for ranks that have left waits in vain,
// and fails long before its time limit. A rank that waits for others says how many steps they are
// behind.
//
// Thread safety: any thread may call anything.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gossamer {

class Attendance {
 public:
  explicit Attendance(std::size_t num_ranks) : has_left_(num_ranks), num_told_(num_ranks) {}

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
  /// `rank` has begun so many steps; negative: the number is not known.
  void tell_steps(int rank, std::int64_t num_steps) {
    num_told_.at(static_cast<std::size_t>(rank)).store(num_steps + 1, std::memory_order_relaxed);
  }
  /// The steps that `rank` has begun, as far as this rank knows; -1: it knows nothing.
  [[nodiscard]] std::int64_t num_steps(int rank) const {
    return num_told_.at(static_cast<std::size_t>(rank)).load(std::memory_order_relaxed) - 1;
  }
  /// Whether this rank knows the steps of all ranks.
  [[nodiscard]] bool knows_all() const {
    return std::ranges::all_of(num_told_, [](const auto& told) { return told.load() > 0; });
  }
  /// A sentence about the rank that is the most steps behind another one, for a rank that waits for
  /// `peers`. Empty: none is behind, as far as this rank knows, or the steps of a peer are unknown.
  [[nodiscard]] std::string behind(const std::vector<int>& peers) const;

 private:
  std::vector<std::atomic<bool>> has_left_;
  /// One more than the steps of each rank; 0: unknown.
  std::vector<std::atomic<std::int64_t>> num_told_;
  std::atomic<bool> any_has_left_ = false;
};

}  // namespace gossamer
