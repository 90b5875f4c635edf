#pragma once
// Lanes between the virtual ranks of a simulation: no messages, rows of one array instead.
//
// Protocol: all ranks start() the same round of a wire, then deliver(), then every rank takes. A
// wire is one lane of all ranks together. Its rows hold what the ranks sent, then the sums over
// groups and nodes. Ranks may start and take from several threads at once; deliver() stands alone.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "apps/lab/simulate/round_plan.hpp"
#include "base/buffer.hpp"
#include "base/worker_pool.hpp"
#include "core/lane.hpp"
#include "topology/push_sum.hpp"

namespace gossamer::apps {

/// One lane of all virtual ranks.
class VirtualWire {
 public:
  /// `spec.dtype` is float64. `topology` may be null for rounds that do not follow it.
  VirtualWire(const LaneSpec& spec, std::shared_ptr<const Topology> topology, int world_size);

  /// Copies what a rank sends.
  void start(int rank, std::int64_t k, const ConstBlock& send);
  /// Makes the round's sums, if the ranks have started one.
  void deliver(WorkerPool& pool);
  /// What has arrived at a rank, once; valid until the next start().
  Intake take(int rank);
  void forget(int rank) { has_arrived_[static_cast<std::size_t>(rank)] = 0; }
  /// Push-sum weights after the last round; 1 in topologies that are not directed.
  [[nodiscard]] const std::vector<double>& weights() const { return push_sum_.weights(); }
  [[nodiscard]] LaneRounds rounds() const { return spec_.rounds; }

 private:
  [[nodiscard]] const RoundPlan& plan_of(std::int64_t k);
  void compute_sum(const RoundPlan& plan, const RowWork& work);
  /// Fills `inboxes` with what the work of a row takes.
  void inboxes_of(const RoundPlan& plan, const RowWork& work, std::vector<Inbox>& inboxes) const;
  [[nodiscard]] Block row(std::int64_t index) const;

  LaneSpec spec_;
  std::shared_ptr<const Topology> topology_;
  int world_size_;
  PushSum push_sum_;
  std::vector<RoundPlan> plans_;
  const RoundPlan* plan_ = nullptr;
  std::int64_t round_ = -1;
  std::atomic<int> num_started_ = 0;
  Buffer rows_;
  /// Of each rank in the current round; null: it sits the round out.
  std::vector<const RowWork*> work_of_;
  std::vector<std::vector<Inbox>> inboxes_;
  /// char, because threads write neighbours at the same time.
  std::vector<char> has_arrived_;
};

/// The wires of a simulation.
class VirtualNetwork {
 public:
  VirtualNetwork(std::shared_ptr<const Topology> topology, int world_size);
  ~VirtualNetwork();
  VirtualNetwork(const VirtualNetwork&) = delete;
  VirtualNetwork& operator=(const VirtualNetwork&) = delete;

  /// Every rank makes the same lanes in the same order, one rank after the other.
  LaneFactory& lanes_of(int rank);
  void deliver(WorkerPool& pool);
  /// See VirtualWire::weights().
  [[nodiscard]] const std::vector<double>& weights() const;

 private:
  class RankLanes;
  friend class RankLanes;

  std::shared_ptr<const Topology> topology_;
  int world_size_;
  std::vector<std::unique_ptr<VirtualWire>> wires_;
  std::vector<std::unique_ptr<RankLanes>> ranks_;
  std::vector<double> ones_;
};

}  // namespace gossamer::apps
