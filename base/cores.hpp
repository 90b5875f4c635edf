#pragma once
// How many cores this process may compute on. A container may have a quota of a few cores on a
// machine with many, and a launcher may bind a process to some of them. Threads beyond that take
// each other's time. Thread safe. Errors: none; a file that cannot be read limits nothing.

#include <optional>
#include <string>
#include <vector>

namespace gossamer {

struct UsableCores {
  /// The processors that the process is bound to (sched_getaffinity), by the system's numbers. At
  /// least one.
  std::vector<int> processors;
  /// The cores that the smallest CPU quota of the process's cgroups is worth, as 1.5. A cgroup of
  /// either version counts, and every one above it.
  std::optional<double> quota = std::nullopt;
  /// The folder of the cgroup with that quota; empty: there is none.
  std::string quota_from = {};

  /// The smaller of the two, rounded down, at least 1.
  [[nodiscard]] int count() const;
};

/// The cores that this process may use now. Tests put `root` before the paths of /proc and /sys.
UsableCores usable_cores(const std::string& root = "");

}  // namespace gossamer
