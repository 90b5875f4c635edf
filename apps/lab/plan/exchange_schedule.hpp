#pragma once
// What an algorithm sends in its steps. The algorithm itself says so. It runs for some of its
// periods (AlgorithmChoice::period()) on one rank with small buckets. Its lanes only write down
// what they are asked to send. So the plan needs no formula for any algorithm.
//
// A schedule holds the steps of one period, after any warm-up. Sizes are relative to the bytes of a
// bucket, so they hold for buckets of any size. It leaves out the votes about grids (GridLane),
// which are some hundred bytes in every eighth step. Immutable, so any thread may read it.

#include <cstdint>
#include <vector>

#include "core/algorithms/algorithm.hpp"
#include "core/exchange/lane.hpp"
#include "optim/optimizer.hpp"

namespace gossamer::apps {

/// The ranks that the rounds of a lane join.
enum class LaneRanks : std::uint8_t {
  kAll,
  /// The ranks of each node among themselves.
  kInNode,
  /// The ranks of one place in all nodes, by the topology among the nodes.
  kBetweenNodes,
};

/// One exchange of one bucket, in which all ranks take part.
struct PlannedExchange {
  LaneRanks ranks = LaneRanks::kAll;
  LaneMembers members = LaneMembers::kTopology;
  LaneResult result = LaneResult::kMix;
  /// The number of the round; says which ranks meet in the lanes that follow a topology.
  std::int64_t round = 0;
  /// The number of steps after which the ranks wait for it; 0: in the step that starts it.
  std::int64_t late = 1;
  /// Bytes of a message between two ranks (or two nodes), divided by the bytes of the bucket.
  double message_share = 1.0;
  /// The same for sums over groups of more ranks.
  double group_share = 1.0;
  /// A sum under a codec: every rank sends a message to each other one, in place of a ring.
  bool is_coded_sum = false;

  friend auto operator<=>(const PlannedExchange&, const PlannedExchange&) = default;
};

class ExchangeSchedule {
 public:
  struct Setup {
    const AlgorithmChoice& algorithm;
    /// The algorithm may need states of the optimizer.
    const Optimizer& optimizer;
    int world_size = 1;
    /// Ranks of a node in the rounds of the topology; 1 if they have one level.
    int node_size = 1;
    /// What messages hold in place of float32 elements; null: the elements.
    const Codec* codec = nullptr;
    /// The float32 elements of each bucket.
    std::vector<std::int64_t> bucket_numel = {};
  };
  /// The longest period that can be planned, in steps.
  static constexpr std::int64_t kLongestPeriod = std::int64_t{1} << 16;
  /// Runs the algorithm. Throws ConfigError if the algorithm has no common steps, does not suit the
  /// optimizer, has a longer period, or does not repeat its exchanges after the period that it
  /// states.
  explicit ExchangeSchedule(const Setup& setup);

  /// The exchanges of one bucket in a step of the schedule, which is at least 0.
  [[nodiscard]] std::vector<PlannedExchange> at(std::int64_t step, std::int64_t bucket) const;
  /// Steps after which the exchanges repeat.
  [[nodiscard]] std::int64_t period() const { return static_cast<std::int64_t>(steps_.size()); }
  /// True: the ranks wait for an exchange in the step that has started it.
  [[nodiscard]] bool waits_in_step() const { return waits_in_step_; }
  /// True: every step mixes the parameters once with the topology's weights, and sends nothing
  /// else.
  [[nodiscard]] bool only_mixes() const;

 private:
  struct Repeated {
    /// The exchange in the first period.
    PlannedExchange exchange;
    /// The rounds by which the round's number grows from period to period.
    std::int64_t rounds_per_period = 0;
  };

  /// [step of the period][bucket]
  std::vector<std::vector<std::vector<Repeated>>> steps_;
  bool waits_in_step_ = false;
};

}  // namespace gossamer::apps
