#pragma once
// A lane of all virtual ranks together. Instead of messages it uses rows of one array. Its rows
// hold the blocks that the ranks sent, then the sums over groups and nodes. On a wire of
// LaneMembers::kTree a rank has a row for each of its peers.
//
// Protocol: all ranks start() the same round of a wire, one thread calls deliver(), then every rank
// calls take().
//
// Thread safety: several threads may call start() and take() at once, for different ranks. No other
// call may run during deliver().

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "apps/lab/simulate/round_plan.hpp"
#include "base/buffer.hpp"
#include "base/worker_pool.hpp"
#include "core/exchange/coded_sum.hpp"
#include "core/exchange/lane.hpp"
#include "topology/push_sum.hpp"

namespace gossamer::apps {

class VirtualWire {
 public:
  /// `spec.dtype` must be float64 unless nothing is summed, as in LaneResult::kApart.
  /// `topology` may be null if the rounds do not follow it. `codec` encodes messages as lanes over
  /// a Communicator do; null: they are plain.
  VirtualWire(const LaneSpec& spec, std::shared_ptr<const Topology> topology, int world_size,
              const Codec* codec = nullptr);

  /// Starts round `k` for one rank, and copies the block that the rank sends. Without a grid, the
  /// block is not encoded.
  void start(int rank, std::int64_t k, const ConstBlock& send, const std::optional<Grid>& grid);
  /// Computes the sums of the round, if the ranks have started one.
  void deliver(WorkerPool& pool);
  /// What to mix in at a rank. Only the first call returns what has arrived. Valid until the next
  /// start().
  Intake take(int rank);
  /// Does what Lane::accumulate_residual() does, after take().
  void accumulate_residual(int rank, const Block& to) const;
  void forget(int rank) { has_arrived_[static_cast<std::size_t>(rank)] = 0; }
  /// The push-sum weights of the ranks after the last round; 1 in undirected topologies.
  [[nodiscard]] const std::vector<double>& weights() const { return push_sum_.weights(); }
  [[nodiscard]] bool mixes() const { return spec_.result == LaneResult::kMix; }
  /// The codec of messages between single ranks; null: the messages are plain.
  [[nodiscard]] const MixingCodec* codec() const { return codec_; }

 private:
  [[nodiscard]] const RoundPlan& plan_of(std::int64_t k);
  /// Makes room for the rows of a plan.
  void reserve_rows(const RoundPlan& plan);
  class SumMemory;
  /// Writes the messages of all ranks with a shard of a coded sum.
  void encode_shards(std::int64_t shard, const SumMemory& memory) const;
  void compute_sums(WorkerPool& pool);
  void compute_sum(const RoundPlan& plan, const RowWork& work, std::vector<Inbox>& inboxes);
  /// Computes the sum of all ranks' blocks through a codec.
  void compute_coded_sum(WorkerPool& pool);
  /// Puts the shards of all ranks into the first row.
  void gather();
  Intake take_gathered(int rank);
  /// What a rank hears on a wire of LaneMembers::kTree.
  Intake take_from_peers(int rank);
  /// Fills `inboxes` with the inboxes of the work on one row.
  void inboxes_of(const RoundPlan& plan, const RowWork& work, std::vector<Inbox>& inboxes) const;
  [[nodiscard]] Block row(std::int64_t index) const;
  [[nodiscard]] Block encoded_row(std::int64_t rank) const;
  /// Whether a rank hears from single ranks in its round, and from no sums.
  [[nodiscard]] bool hears_ranks(const RowWork& work) const;

  LaneSpec spec_;
  std::shared_ptr<const Topology> topology_;
  int world_size_;
  /// In LaneMembers::kTree: the peers of every rank, and its first row.
  std::vector<std::vector<int>> peers_;
  std::vector<std::int64_t> first_row_;
  const MixingCodec* codec_;
  /// Present for LaneResult::kSum under a codec.
  std::optional<CodedSum> coded_sum_;
  PushSum push_sum_;
  std::vector<RoundPlan> plans_;
  /// False once a round of a directed topology has changed a push-sum weight or was left out: its
  /// rounds then have new weights in every period.
  bool repeats_ = true;
  const RoundPlan* plan_ = nullptr;
  /// A round of this wire. Ranks may start one while others still take the one before.
  struct Turn {
    std::int64_t round = -1;
    /// Whether the ranks have encoded their blocks.
    bool is_encoded = false;
  };
  Turn started_;
  Turn delivered_;
  std::atomic<int> num_started_ = 0;
  Buffer rows_;
  /// In LaneMembers::kTree: the rows of the last round. Ranks use them until the next deliver(),
  /// while other ranks already start a round.
  Buffer heard_rows_;
  /// The encoded blocks of the ranks.
  Buffer encoded_rows_;
  /// The work of each rank in the current round; null: the rank sits the round out.
  std::vector<const RowWork*> work_of_;
  /// char and not bool, because threads write neighbouring elements at the same time.
  std::vector<char> has_arrived_;
};

}  // namespace gossamer::apps
