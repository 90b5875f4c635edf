#include "test/core/exchange/async_exchange_runs.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "base/text.hpp"
#include "core/bucket/model_average.hpp"
#include "core/exchange/async_exchange.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

constexpr std::size_t kNumel = 5;

void mix(std::vector<double>& z, const AsyncExchange::Taken& taken) {
  for (std::size_t e = 0; e < z.size(); ++e) {
    double mixed = taken.keep * z[e];
    for (const AsyncExchange::Message& message : taken.messages) {
      mixed += message.weight * static_cast<const double*>(message.body.data)[e];
    }
    z[e] = mixed;
  }
}

double largest(Communicator& communicator, double value) {
  return std::ranges::max(gather_numbers(communicator, value));
}

}  // namespace

AsyncExchangeOutcome run_async_exchanges(Communicator& communicator, const AsyncExchangeRun& run) {
  Random random(run.seed, static_cast<std::uint64_t>(communicator.rank()));
  std::vector<double> z(kNumel);
  for (double& value : z) value = random.uniform(-1.0, 1.0);
  const std::vector<double> sums = sum_over_ranks(communicator, z);

  LaneMetrics metrics;
  AsyncExchange async_exchange(
      communicator, *communicator.stream(), metrics, *run.topology,
      {.body_bytes = kNumel * sizeof(double),
       .max_age = run.max_age,
       .write = [&z](const Block& body) { std::ranges::copy(z, static_cast<double*>(body.data)); },
       .mix = [&z](const AsyncExchange::Taken& taken) { mix(z, taken); }});
  int step = 0;
  for (int part = 0; part < 2; ++part) {
    const int num_steps = run.num_steps + communicator.rank();
    for (int k = 0; k < num_steps; ++k, ++step) {
      run.before_step(step);
      if (run.longest_sleep_us > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random.below(run.longest_sleep_us)));
      }
      mix(z, async_exchange.take(step));
      async_exchange.release();
      async_exchange.send(step);
    }
    async_exchange.close();
  }

  AsyncExchangeOutcome outcome;
  const AsyncExchangeState& state = async_exchange.state();
  const auto total = [&](double value) { return sum_over_ranks(communicator, {value}).front(); };
  outcome.mass_error = std::abs(total(state.mass) - communicator.size());
  outcome.step_error = std::abs(total(state.steps) - total(step));
  std::vector<double> weighted = z;
  for (double& value : weighted) value *= state.mass;
  const std::vector<double> now = sum_over_ranks(communicator, weighted);
  for (std::size_t e = 0; e < kNumel; ++e) {
    outcome.sum_error = std::max(outcome.sum_error, std::abs(now[e] - sums[e]));
    const double distance = std::abs(z[e] - sums[e] / communicator.size());
    outcome.spread = std::max(outcome.spread, largest(communicator, distance));
  }
  outcome.largest_age = static_cast<std::int64_t>(
      largest(communicator, static_cast<double>(async_exchange.counters().largest_age)));
  outcome.num_messages =
      static_cast<std::int64_t>(total(static_cast<double>(async_exchange.counters().num_messages)));
  return outcome;
}

std::shared_ptr<const Topology> async_topology(const std::string& name, int num_ranks) {
  if (name != "directed-ring") {
    return make_topology(name, {.size = num_ranks, .node_size = num_ranks});
  }
  Round round;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int last = (rank + num_ranks - 1) % num_ranks;
    for (const int from : {std::min(rank, last), std::max(rank, last)}) {
      round.arcs.push_back({.from = from, .to = rank, .weight = 0.5});
    }
  }
  return make_periodic(name, {std::move(round)}, /*directed=*/true);
}

void require_sound(const AsyncExchangeOutcome& outcome, const AsyncExchangeRun& run,
                   const std::string& what) {
  const auto require = [&what](bool holds, const auto&... text) {
    if (!holds) throw std::runtime_error(concat(what, ": ", text...));
  };
  require(outcome.mass_error < 1e-12, "the mass is off by ", outcome.mass_error);
  require(outcome.sum_error < 1e-12, "the sum of s z is off by ", outcome.sum_error);
  require(outcome.step_error < 1e-8, "the steps are off by ", outcome.step_error);
  if (run.max_age) {
    // The models begin as far as 1 from their mean. How near they come depends on the processor: a
    // bound of 8 promises a message of each edge in every ninth step only, and no bound nothing.
    require(outcome.spread < 0.3, "the models differ from their mean by ", outcome.spread);
    require(outcome.largest_age <= *run.max_age, "a letter is ", outcome.largest_age, " steps old");
  }
}

}  // namespace gossamer
