#include "topology/check.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "topology/push_sum.hpp"
#include "topology/verify.hpp"

namespace gossamer {
namespace {

/// Ranks and arcs that are looked at, over all rounds: well under a second.
constexpr std::int64_t kMostWork = std::int64_t{1} << 18;
/// Updates are divided by a rank's weight.
constexpr double kLeastWeight = 1e-12;

std::optional<std::string> long_period(const Topology& topology) {
  const std::int64_t period = topology.period().value_or(0);
  if (period <= kLongestPeriod) return std::nullopt;
  return concat(topology.name(), " repeats only after ", period < kManyRounds ? "" : "more than ",
                std::min(period, kManyRounds), " rounds, allowed: a period of at most ",
                kLongestPeriod,
                " rounds. Choose smaller numbers for sit_out, leaders_every and every.period, or "
                "numbers with common factors where topologies alternate");
}

std::optional<std::string> small_weight(const PushSum& push_sum, std::int64_t round) {
  const std::vector<double>& weights = push_sum.weights();
  const auto least = std::ranges::min_element(weights);
  if (*least >= kLeastWeight) return std::nullopt;
  return concat("in round ", round, " the push-sum weight of rank ", least - weights.begin(),
                " is down to ", shortest(*least),
                ", because the rank gives away more than it hears; its updates would be divided by "
                "that weight. Let the rank hear from more ranks, or give away less");
}

/// Takes `push_sum` through the rounds from `first` to before `last`, or through as many of them as
/// `work` pays for. Stops early where a period has changed nothing.
std::optional<std::string> obstacle_between(const Topology& topology, std::int64_t first,
                                            std::int64_t last, std::int64_t work,
                                            PushSum& push_sum) {
  const std::int64_t period = topology.period().value_or(last - first);
  std::vector<double> before = push_sum.weights();
  for (std::int64_t k = first; k < last && work > 0; ++k) {
    const Round round = topology.round(k);
    work -= std::ssize(push_sum.weights()) + std::ssize(round.arcs);
    try {
      push_sum.skip(round);
    } catch (const ConfigError& error) {
      return concat("in round ", k, ": ", error.what());
    }
    if (auto found = small_weight(push_sum, k)) return found;
    if ((k - first + 1) % period != 0) continue;
    if (push_sum.weights() == before) break;
    before = push_sum.weights();
  }
  return std::nullopt;
}

std::optional<std::string> failing_push_sum(const Topology& topology, int world_size) {
  if (!topology.directed()) return std::nullopt;
  std::vector<std::int64_t> ends = topology.turning_points();
  ends.push_back(kManyRounds);
  PushSum push_sum(world_size);
  std::int64_t first = 0;
  for (const std::int64_t last : ends) {
    if (auto found =
            obstacle_between(topology, first, last, kMostWork / std::ssize(ends), push_sum)) {
      return concat(topology.name(), ": ", *found);
    }
    first = last;
  }
  return std::nullopt;
}

std::optional<std::string> broken_round(const Topology& topology, int world_size) {
  // Topologies without a period make their rounds by one rule.
  constexpr std::int64_t kNumChecked = 64;
  const std::int64_t last = topology.period().value_or(kNumChecked);
  for (std::int64_t k = 0; k < last; ++k) {
    const auto found = find_violation(topology.round(k), world_size, topology.directed());
    if (found) return concat(topology.name(), ": in round ", k, ": ", found->text);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_obstacle(const Topology& topology, int world_size) {
  if (auto found = long_period(topology)) return found;
  return failing_push_sum(topology, world_size);
}

std::optional<std::string> find_fault(const Topology& topology, int world_size) {
  if (auto found = long_period(topology)) return found;
  if (auto found = broken_round(topology, world_size)) return found;
  return failing_push_sum(topology, world_size);
}

void check_topology(const Topology& topology, int world_size) {
  if (const auto found = find_obstacle(topology, world_size)) throw ConfigError(*found);
}

}  // namespace gossamer
