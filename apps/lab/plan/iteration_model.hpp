#pragma once
// How long a training step takes, computed and not measured: every rank, bucket and round of some
// steps is followed through a queue of events. The idea and the figures it is held against are
// those of Wang et al., "From Promise to Practice: Realizing High-performance Decentralized
// Training", ICLR 2025, section 3; docs/iteration-model.md says how well it does.
//
// A rank's step: forward, then backward, in which buckets become ready one after the other, each
// after a time in proportion to its bytes.
// - Gossip: a bucket that is ready waits until its exchange of the step before is over, is mixed
//   and updated, and starts its next exchange; backward goes on after that.
// - All-reduce: a bucket that is ready starts to be summed over all ranks; after backward every
//   bucket is waited for, in order, and updated.
// A transfer begins when all its members have started it, and not before the links are free: a
// link serves transfers in the order in which they begin. So two ranks of a node that talk to
// other nodes at the same time share the node's link (traffic.hpp).
//
// Transfers may take computing time from the ranks at both ends (LinkSpeed::lost_s_per_byte); a
// rank loses it in the stretch of computing that follows the transfer's beginning.
//
// Stragglers: the time of forward and backward is drawn for every rank and step from a gamma
// distribution. A rank waits only for those it exchanges with, so a delay spreads through
// exchanges alone. The same seed gives every topology the same delays.

#include <cstdint>
#include <vector>

#include "apps/lab/plan/links.hpp"
#include "base/types.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

/// What steps are made of, and how many are followed.
struct StepModel {
  /// `size` and `node_size` count.
  World world = {};
  Links links = {};
  /// Seconds of forward and backward, mean over ranks and steps.
  double compute_s = 0.0;
  /// The part of it that is backward.
  double backward_share = 2.0 / 3.0;
  /// Standard deviation of the time of forward and backward, divided by its mean.
  double straggler_cv = 0.0;
  std::uint64_t seed = 1;
  /// In the order in which they become ready.
  std::vector<double> bucket_bytes = {};
  /// Steps that count, and steps before them.
  std::int64_t num_steps = 48;
  std::int64_t num_warmup = 8;
};

struct StepPrediction {
  /// Seconds per step, mean over ranks and steps.
  double step_s = 0.0;
  /// Seconds of it in which a rank waits for others or for links.
  double wait_s = 0.0;
};

/// Sizes of the buckets that `model_bytes` of parameters fill: all of `bucket_bytes`, but for a
/// smaller last one. Of more than `most`, that many equal ones are left. Throws ConfigError for
/// sizes of less than a byte.
std::vector<double> split_into_buckets(double model_bytes, double bucket_bytes,
                                       std::int64_t most = 256);

/// All throw ConfigError for a model that cannot be.
StepPrediction predict_gossip(const StepModel& model, const Topology& topology);
StepPrediction predict_all_reduce(const StepModel& model);
/// Without any communication.
StepPrediction predict_local(const StepModel& model);

}  // namespace gossamer::apps
