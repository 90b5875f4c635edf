#pragma once
// The world of ranks that are processes.

#include <functional>
#include <memory>
#include <span>

#include "base/log.hpp"
#include "base/types.hpp"
#include "comm/launch.hpp"
#include "comm/progress_worker.hpp"

namespace gossamer {

/// `hosts`: see placement.hpp. Rank 0 warns of hosts with different numbers of ranks.
World world_on(std::span<const int> hosts, int rank, const LaunchOptions& options,
               const Logger& logger);

/// Runs `call` on the progress worker.
std::unique_ptr<Operation> make_call(std::function<void()> call);

}  // namespace gossamer
