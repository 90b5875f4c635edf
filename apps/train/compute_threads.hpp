#pragma once
// The compute threads of a rank where the configuration leaves their number open: the ranks of a
// host share the cores that they may use.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/run_config.hpp"
#include "base/cores.hpp"
#include "base/types.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

struct ThreadShare {
  /// The number of threads, at least 1.
  std::int64_t threads = 1;
  /// A sentence for the log: where the number comes from.
  std::string reason = {};
};

/// This rank's share. `on_host`: what each rank of its host may use, this rank's own included.
/// Ranks that are bound to other processors share none with it, and a quota is shared by the ranks
/// whose cgroup it is.
ThreadShare share_of_cores(const UsableCores& own, const std::vector<UsableCores>& on_host);

/// Collective, unless `communicator` is null, which stands for a rank that joins others: it takes
/// the ranks of its host to be bound as it is itself. Sets LibTorch's number of threads for this
/// rank: the value of run.threads, or if that is 0 the rank's share. Returns the share; none where
/// run.threads says the number.
std::optional<ThreadShare> set_compute_threads(const RunConfig& config, const World& world,
                                               Communicator* communicator);

}  // namespace gossamer::apps
