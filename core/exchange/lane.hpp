#pragma once
// A lane carries the messages of one bucket, one round at a time. An algorithm starts a round with
// a block, and takes the result before the next update. A lane does not know what a block holds:
// parameters, gradients, or a state of the algorithm.
//
// Protocol: start(k), wait(), take(), start(k + 1), and so on. receive() does the work of wait()
// and take(). All ranks use the same rounds, and start their lanes in the same order. No code may
// write the block between start() and the end of wait(). The result of a round that is never taken
// is lost; later rounds are not affected. forget() drops the blocks that have arrived.
//
// Codecs: under a codec, lanes of LaneResult::kMix send encoded blocks to peers and neighbours.
// Lanes of LaneResult::kSum encode the first LaneSpec::num_coded elements, and take() gives plain
// values.
//
// Updates: the pass that uses an Intake must do all work that Intake::exchange asks for. Such work
// encodes the block that the pass writes, or copies it for ranks of this host (host_slots.hpp). The
// next start() must send this block. Where no pass has done the work, start() encodes or copies the
// block itself.
//
// Training has lanes over a Communicator (peer_lanes.hpp), and a simulation has lanes between its
// virtual ranks. Both kinds come from a LaneFactory, so an algorithm does not see the difference.
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
  /// Starts this rank's part of round k >= 0. `send` must have LaneSpec::numel elements, and under
  /// LaneMembers::kTree as many for each peer. The lane keeps the memory of `send` alive until the
  /// messages are over.
  virtual void start(std::int64_t k, const Buffer& send) = 0;
  /// Waits for the messages that start() has started. Work that the stream gets later runs after
  /// their arrival. The calling thread waits, except for messages of NCCL, for which only the
  /// stream waits (Request::wait_on). Returns at once if nothing is under way. Throws CommError. In
  /// builds with GOSSAMER_CHECK_BLOCKS it also throws std::logic_error when the block was written
  /// during the round. On a stream that lags behind the std::logic_error comes later.
  virtual void wait() = 0;
  /// Does what wait() does, and waits for messages that the lane itself has started, too.
  virtual void drain() { wait(); }
  /// Returns the blocks to mix in. Only the first call after wait() returns the blocks that have
  /// arrived; later calls return an Intake that mixes in nothing. The Intake is valid until the
  /// next start().
  virtual Intake take() = 0;
  /// Does the work of wait() and take(), for a pass that does all work of Intake::exchange. The
  /// pass may begin before the last elements have arrived (ExchangeWork::wait_for_more). receive()
  /// and wait_for_more() throw what wait() throws.
  virtual Intake receive() {
    wait();
    return take();
  }
  /// Adds this rank's residual of a sum under a codec to `to`, as work on the stream. The residual
  /// is the error of this rank's messages, and the error of the sum where this rank has encoded the
  /// sum. The sum and the residuals of all ranks together equal the sum of the ranks' blocks. Only
  /// the first LaneSpec::num_coded elements have a residual. Call it after take() and before the
  /// next start(); the block that was sent must not have changed. Lanes without coded sums add
  /// nothing.
  virtual void accumulate_residual(const Block& /*to*/) {}
  /// Drops the blocks that have arrived: take() then returns an Intake that mixes in nothing.
  virtual void forget() = 0;
  /// Shows the visitor the state that the lane needs to go on after loading, once for each of
  /// `names`. A name is a parameter of the bucket, followed by the lane's content, as
  /// `fc.weight/trackers`. Call it after drain(), when the stream's work is done. After loading,
  /// the next start() repeats the last round before the state was saved. Throws CheckpointError for
  /// impossible numbers.
  virtual void visit(StateVisitor& /*visitor*/, std::span<const std::string> /*names*/) {}
};

/// The ranks that meet in the rounds of a lane.
enum class LaneMembers : std::uint8_t {
  /// The ranks that the topology's round joins.
  kTopology,
  /// The ranks that the topology's one round joins; the round must be a tree (is_tree()). A rank
  /// sends a different block to each peer: `send` holds LaneSpec::numel elements for each peer, in
  /// the order of the peers' ranks. Only with LaneResult::kApart.
  kTree,
  /// All ranks, in every round.
  kAll,
};

/// How a lane combines the blocks of a round into the result of take().
enum class LaneResult : std::uint8_t {
  /// The blocks, or sums of them, with the topology's weights. A codec may encode them.
  kMix,
  /// One plain inbox for each rank from which this rank receives, with the topology's weights. In a
  /// tree the inboxes are in the order of the peers, with weight 1.
  kApart,
  /// The mean of the blocks of all ranks.
  kMean,
  /// The sum of the blocks of all ranks, this rank's included: keep = 0 and one inbox of weight 1.
  kSum,
  /// The shards of all ranks, as in an all_gather: `send` holds this rank's shard (shard_of()), and
  /// the lane writes the other ranks' shards into `send`. take() gives keep = 0 and `send` with
  /// weight 1.
  kGather,
  /// This rank's shard of the sum, as in a reduce_scatter: the lane adds the other ranks' values to
  /// this rank's shard of `send`, and the other shards stay. take() gives keep = 0 and this shard
  /// with weight 1. Host memory only.
  kShardSum,
};

struct LaneSpec {
  LaneMembers members = LaneMembers::kTopology;
  LaneResult result = LaneResult::kMix;
  std::int64_t bucket = 0;
  /// Elements of a block that is sent.
  std::int64_t numel = 0;
  /// In sums: the number of first elements that a codec may encode. The lane sends the other
  /// elements without encoding.
  std::int64_t num_coded = 0;
  DType dtype = DType::kFloat32;
  /// The elements at which shards may begin (shard_of()); empty: every cache line.
  std::vector<std::int64_t> shard_borders = {};
  /// The name of the blocks in saved state and in messages to the user; text that outlives the
  /// lane.
  std::string_view content = "parameters";
  /// False: PeerLanes::forget() leaves this lane alone, because the algorithm still takes the
  /// blocks that have arrived.
  bool forgets = true;
  /// True: a round comes every few steps, or the pass that mixes in a result does not write the
  /// block that the next round sends. So the pass prepares nothing for the next round
  /// (Intake::exchange), and the ranks agree on quantisation scales within fewer rounds (GridLane).
  bool is_rare = false;
};

class LaneFactory;

/// The lanes of a topology's nodes; the factory that made them owns both.
struct NodeLanes {
  /// Makes the lanes between the ranks of this rank's node.
  LaneFactory& inside;
  /// Makes the lanes between the ranks at this rank's place in all nodes; their topology joins
  /// nodes.
  LaneFactory& between;
  /// This rank's place in its node.
  int place = 0;
};

/// Makes the lanes of one rank, and owns them for the algorithm that asks for them. Collective:
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
  /// Makes the exchange of an algorithm without common rounds. The exchange lives as long as a lane
  /// would. Throws ConfigError where all ranks run in step.
  virtual AsyncExchange& make_async_exchange(AsyncExchange::Config /*config*/) {
    throw ConfigError(
        "asynchronous algorithms need ranks that run on their own, and simulated ranks go in step; "
        "take gossip");
  }
  /// Collective. The topology must have fixed nodes (has_fixed_nodes()).
  virtual NodeLanes split_by_node() = 0;
  /// The number of ranks of a node in the topology's rounds; 1 if there is no topology of two
  /// levels.
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
  /// The lanes, in the order of make_lane().
  [[nodiscard]] std::span<const MadeLane> made() const { return made_; }
  void drop_made() { made_.clear(); }

 private:
  std::vector<MadeLane> made_;
};

}  // namespace gossamer
