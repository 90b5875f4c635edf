#pragma once
// A lane carries the messages of one bucket, one round at a time. An algorithm starts a round with
// a block, and takes the result before the next update. A lane does not know what a block holds:
// parameters, gradients, or a state of the algorithm.
//
// Protocol: start(k), wait(), take(), start(k + 1), and so on. All ranks use the same rounds, and
// start their lanes in the same order. No code may write the block between start() and the end of
// wait(). The result of a round that is never taken is lost; later rounds are not affected.
// forget() drops what has arrived. receive() stands for wait() and take().
//
// Under a codec, lanes of LaneResult::kMix send encoded blocks to peers and neighbours. Lanes of
// LaneResult::kSum encode the first LaneSpec::num_coded elements, and take() gives plain values.
// The pass that uses an Intake must do all of Intake::exchange: it may have to encode the block
// that it writes, or to copy it for ranks of this host (host_slots.hpp). The next start() must send
// this block. Otherwise start() encodes or copies it.
//
// There are two kinds: lanes over a Communicator (peer_lanes.hpp), and lanes between the virtual
// ranks of a simulation. Both come from a LaneFactory, so an algorithm does not see the difference.
//
// Errors: CommError. Not thread safe.

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.hpp"
#include "base/error.hpp"
#include "base/state_visitor.hpp"
#include "base/stream.hpp"
#include "base/types.hpp"
#include "core/exchange/async_exchange.hpp"
#include "optim/intake.hpp"

namespace gossamer {

class Lane {
 public:
  virtual ~Lane() = default;
  /// Starts this rank's part of round k >= 0. `send` must have LaneSpec::numel elements, with
  /// LaneMembers::kTree for each peer. The lane keeps the memory of `send` alive until the
  /// messages are over.
  virtual void start(std::int64_t k, const Buffer& send) = 0;
  /// Work given to the stream later runs after the messages that start() has started have arrived.
  /// The caller waits for them; only for NCCL's the stream does (Request::wait_on). Returns at once
  /// if nothing is under way. Throws CommError; in builds with GOSSAMER_CHECK_BLOCKS also
  /// std::logic_error when the block was written during the round. On a stream that lags behind the
  /// std::logic_error comes later.
  virtual void wait() = 0;
  /// wait(), also for messages that the lane has sent by itself.
  virtual void drain() { wait(); }
  /// What to mix in. Only the first call after wait() returns what has arrived; later calls return
  /// an Intake that mixes in nothing. Valid until the next start().
  virtual Intake take() = 0;
  /// wait() and take() in one, for a pass that does all of Intake::exchange. It may begin before
  /// the last elements have arrived (ExchangeWork::wait_for_more). Throws what wait() throws, and
  /// so does wait_for_more().
  virtual Intake receive() {
    wait();
    return take();
  }
  /// to += this rank's residual of a sum under a codec: the error of its messages, and the error of
  /// the sum where this rank has encoded it. The residuals of all ranks are what the sum lacks of
  /// their blocks. Only the first LaneSpec::num_coded elements have one. As work on the stream.
  /// After take() and before the next start(); the block that was sent must be as it was. Other
  /// lanes add nothing.
  virtual void accumulate_residual(const Block& /*to*/) {}
  /// Drops what has arrived: take() then returns an Intake that mixes in nothing.
  virtual void forget() = 0;
  /// Shows the visitor what the lane must know to go on after loading, once for each of `names`:
  /// the parameters of its bucket, each followed by the lane's content, as `fc.weight/trackers`.
  /// Called after drain(), when the stream's work is done. After loading, the next start() repeats
  /// the last round before the state was saved. Throws CheckpointError for impossible numbers.
  virtual void visit(StateVisitor& /*visitor*/, std::span<const std::string> /*names*/) {}
};

/// The ranks that meet in the rounds of a lane.
enum class LaneMembers : std::uint8_t {
  /// The ranks that the topology's round joins.
  kTopology,
  /// The ranks that the topology's one round joins; the round must be a tree (is_tree()). A rank
  /// sends each
  /// peer a block of its own: `send` holds LaneSpec::numel elements for each, in the order of their
  /// ranks. Only with LaneResult::kApart.
  kTree,
  /// All ranks, in every round.
  kAll,
};

/// What becomes of the blocks that meet: what take() gives.
enum class LaneResult : std::uint8_t {
  /// The blocks, or sums of them, with the topology's weights. A codec may encode them.
  kMix,
  /// One plain inbox for each rank that this one hears from: with the topology's weights, in a tree
  /// in the order of the peers and with weight 1.
  kApart,
  /// The mean of the blocks of all ranks.
  kMean,
  /// The sum of the blocks of all ranks, this rank's included: keep = 0 and one inbox of weight 1.
  kSum,
  /// The shards of all ranks: `send` holds this rank's shard (shard_of()), and the lane writes the
  /// others' shards into `send`. take() gives keep = 0 and `send` with weight 1.
  kGather,
  /// This rank's shard of the sum: the lane adds the other ranks' values to this rank's shard of
  /// `send`; the other shards stay. take() gives keep = 0 and this shard with weight 1. Host memory
  /// only.
  kShardSum,
};

struct LaneSpec {
  LaneMembers members = LaneMembers::kTopology;
  LaneResult result = LaneResult::kMix;
  std::int64_t bucket = 0;
  /// Elements of a block that is sent.
  std::int64_t numel = 0;
  /// In sums, the first elements, which a codec may encode. The others are sent as they are.
  std::int64_t num_coded = 0;
  DType dtype = DType::kFloat32;
  /// The places at which shards may begin (shard_of()); empty: every cache line.
  std::vector<std::int64_t> shard_borders = {};
  /// The name of the blocks in saved state and in messages to the user; text that outlives the
  /// lane.
  std::string_view content = "parameters";
  /// False: where all lanes forget (PeerLanes::forget()), this one keeps what has arrived, because
  /// the algorithm takes it all the same.
  bool forgets = true;
  /// True: a round comes every few steps, or the pass that mixes in what has arrived does not write
  /// the block that the next round sends. So the pass prepares nothing for the next round
  /// (Intake::exchange), and grids are agreed on within fewer rounds (GridLane).
  bool is_rare = false;
  /// True: the blocks are in host memory, whatever the device is. The lane works on
  /// LaneFactory::host_stream(), and so does the pass that mixes in what has arrived.
  bool on_host = false;
};

class LaneFactory;

/// The lanes of a topology's nodes; the factory that made them owns both.
struct NodeLanes {
  /// Between the ranks of this rank's node.
  LaneFactory& inside;
  /// Between the ranks with this rank's place in all nodes; the topology is that among the nodes.
  LaneFactory& between;
  /// This rank's place in its node.
  int place = 0;
};

/// Makes the lanes of one rank, and keeps them for the algorithm that asks for them. Collective:
/// every rank makes the same lanes in the same order.
class LaneFactory {
 public:
  virtual ~LaneFactory() = default;
  /// The lane stays until the factory drops it. Throws std::logic_error if the lane needs a
  /// topology and there is none.
  Lane& make_lane(const LaneSpec& spec) {
    made_.push_back({spec, make(spec)});
    return *made_.back().lane;
  }
  /// For algorithms without common rounds. It stays as long as a lane. Throws ConfigError where all
  /// ranks go in step.
  virtual AsyncExchange& make_async_exchange(AsyncExchange::Config /*config*/) {
    throw ConfigError(
        "asynchronous algorithms need ranks that run on their own, and simulated ranks go in step; "
        "take gossip");
  }
  /// The stream of lanes with LaneSpec::on_host, which lags behind. Throws std::logic_error where
  /// all blocks are in host memory.
  virtual Stream& host_stream() { throw std::logic_error("LaneFactory: blocks are on the host"); }
  /// Collective. The topology must have fixed nodes (has_fixed_nodes()).
  virtual NodeLanes split_by_node() = 0;
  /// Ranks of a node in the topology's rounds; 1 if there is no topology of two levels.
  [[nodiscard]] virtual int node_size() const = 0;
  [[nodiscard]] virtual int num_ranks() const = 0;
  /// The number of this rank's peers in lanes of LaneMembers::kTree. Throws std::logic_error if
  /// there is no topology.
  [[nodiscard]] virtual std::int64_t num_tree_peers() const = 0;

 protected:
  struct MadeLane {
    LaneSpec spec;
    std::unique_ptr<Lane> lane;
  };

  virtual std::unique_ptr<Lane> make(const LaneSpec& spec) = 0;
  /// In the order of make_lane().
  [[nodiscard]] std::span<const MadeLane> made() const { return made_; }
  void drop_made() { made_.clear(); }

 private:
  std::vector<MadeLane> made_;
};

}  // namespace gossamer
