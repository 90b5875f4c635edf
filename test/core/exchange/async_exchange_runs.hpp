#pragma once
// Runs of exchanges that all ranks make together, as threads or under MPI. Failures are
// std::runtime_error.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.hpp"
#include "topology/topology.hpp"

namespace gossamer {

struct AsyncExchangeRun {
  std::shared_ptr<const Topology> topology = {};
  /// Own steps after which a rank waits; null: never.
  std::optional<std::int64_t> max_age = {};
  /// The steps of the ranks differ: rank r makes num_steps + r.
  int num_steps = 100;
  /// Every step sleeps a random time below this.
  int longest_sleep_us = 100;
  std::uint64_t seed = 1;
  /// Called before every step of this rank.
  std::function<void(int step)> before_step = [](int) {};
};

/// What the whole run has come to, the same on all ranks.
struct AsyncExchangeOutcome {
  /// The sum of all masses less the number of ranks, without sign.
  double mass_error = 0.0;
  /// The largest change of the sum of s z in an element.
  double sum_error = 0.0;
  /// The largest distance of an element of any z from the mean.
  double spread = 0.0;
  double step_error = 0.0;
  std::int64_t largest_age = 0;
  std::int64_t num_messages = 0;
};

/// Collective. Two runs of steps with random delays, each closed, on models that no update moves.
AsyncExchangeOutcome run_async_exchanges(Communicator& communicator, const AsyncExchangeRun& run);

/// The directed topologies, and some whose edges go both ways; all repeat.
std::shared_ptr<const Topology> async_topology(const std::string& name, int num_ranks);

/// Throws std::runtime_error if the outcome breaks the protocol's promises.
void require_sound(const AsyncExchangeOutcome& outcome, const AsyncExchangeRun& run,
                   const std::string& what);

}  // namespace gossamer
