#pragma once
// A lane carries the messages of one bucket, one round at a time. An algorithm starts a round with
// a block, and takes what has arrived before the next update. A lane does not know what the block
// holds: parameters, gradients, or a state of the algorithm.
//
// Protocol: start(k), wait(), take(), start(k + 1), ... on every rank with the same rounds, and the
// lanes of a rank in the same order on every rank. Between start() and the end of wait() nobody may
// write the block. A round that nobody takes is lost, without harm to later ones. forget() drops
// what has arrived. Not thread safe.
//
// Two kinds exist: lanes over a Communicator (peer_lane.hpp), and lanes between the virtual ranks
// of a simulation. Both come from a LaneFactory, so that an algorithm does not see the difference.

#include <cstdint>
#include <memory>

#include "base/buffer.hpp"
#include "base/types.hpp"
#include "core/intake.hpp"

namespace gossamer {

class Lane {
 public:
  virtual ~Lane() = default;
  /// Starts this rank's part of round k >= 0. `send` has as many elements as the lane's LaneSpec
  /// says; the lane keeps its memory alive until the messages are over.
  virtual void start(std::int64_t k, const Buffer& send) = 0;
  /// What the stream is given later comes after the arrival of what start() has started. On a
  /// stream whose work is done at once the caller waits. Returns at once if nothing is under way.
  /// Throws CommError; in debug builds std::logic_error when the block was written meanwhile.
  virtual void wait() = 0;
  /// What has arrived, once; later calls give nothing to mix in. Valid until the next start().
  virtual Intake take() = 0;
  /// What has arrived is not mixed in.
  virtual void forget() = 0;
};

/// Which ranks the rounds of a lane bring together.
enum class LaneRounds : std::uint8_t {
  /// The run's topology. take() mixes as its weights say.
  kTopology,
  /// All ranks in every round. take() gives their mean.
  kMean,
  /// All ranks in every round. take() gives keep = 0 and one inbox of weight 1: the sum of all
  /// ranks' blocks, this rank's included.
  kSum,
};

struct LaneSpec {
  LaneRounds rounds = LaneRounds::kTopology;
  std::int64_t bucket = 0;
  /// Elements of the blocks that are sent.
  std::int64_t numel = 0;
  DType dtype = DType::kFloat32;
};

/// Makes the lanes of one rank. Collective: every rank makes the same lanes in the same order.
class LaneFactory {
 public:
  virtual ~LaneFactory() = default;
  /// The factory outlives the lane.
  virtual std::unique_ptr<Lane> make_lane(const LaneSpec& spec) = 0;
  [[nodiscard]] virtual int num_ranks() const = 0;
};

}  // namespace gossamer
