#pragma once
// Predicts how long a training step takes. The model follows every rank, bucket and round of some
// steps through a queue of events. The idea, and the measurements it is compared with, are from
// Wang et al., "From Promise to Practice: Realizing High-performance Decentralized Training", ICLR
// 2025, section 3. docs/design/iteration-model.md says how accurate the model is.
//
// A rank's step is forward, then backward. In backward, buckets become ready one after the other,
// each after a time in proportion to its bytes.
// - Gossip: a bucket that is ready waits until its exchange of the step before is over. Then it is
//   mixed and updated, and starts its next exchange. Backward goes on after that.
// - All-reduce: a bucket that is ready starts to be summed over all ranks. After backward the rank
//   waits for every bucket, in order, and updates it.
// - Other algorithms: as all-reduce, if ranks wait for an exchange in the step that starts it;
//   otherwise as gossip. ExchangeSchedule says which exchanges a step starts, and how many steps
//   later the ranks wait for them.
// A transfer begins when all its members have started it and the links are free. A link serves
// transfers in the order in which they begin. So two ranks of a node that talk to other nodes at
// the same time share the node's link (traffic.hpp).
//
// A transfer may take computing time from the ranks at both ends (LinkSpeed::lost_s_per_byte). A
// rank loses this time in its first stretch of computing after the transfer begins.
//
// Stragglers: the time of forward and backward of every rank and step is drawn from a gamma
// distribution. A rank waits only for the ranks that it exchanges with, so a delay spreads through
// exchanges alone. The same seed gives the same delays for every topology.

#include <cstdint>
#include <functional>
#include <vector>

#include "apps/lab/plan/exchange_schedule.hpp"
#include "apps/lab/plan/links.hpp"
#include "apps/lab/plan/traffic.hpp"
#include "base/types.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

/// The parts of a step, and how many steps the model follows.
struct StepModel {
  /// `size` and `node_size` count.
  World world = {};
  Links links = {};
  /// Seconds of forward and backward together, mean over ranks and steps.
  double compute_s = 0.0;
  /// The share of compute_s that is backward, 0 to 1.
  double backward_share = 2.0 / 3.0;
  /// Standard deviation of the time of forward and backward, divided by its mean.
  double straggler_cv = 0.0;
  std::uint64_t seed = 1;
  /// Bytes of each bucket, in the order in which the buckets become ready.
  std::vector<double> bucket_bytes = {};
  /// Steps that count, and warm-up steps before them.
  std::int64_t num_steps = 48;
  std::int64_t num_warmup = 8;
};

struct StepPrediction {
  /// Seconds per step, mean over ranks and steps.
  double step_s = 0.0;
  /// Seconds of step_s in which a rank waits for other ranks or for links.
  double wait_s = 0.0;
  /// Bytes that a rank sends in a step, mean over ranks and steps.
  double bytes_sent = 0.0;
  /// Bytes that leave any region in a step, mean over steps; 0 in a single region.
  double bytes_across = 0.0;
};

/// Sizes in bytes of the buckets that `model_bytes` of parameters fill: all are `bucket_bytes`
/// large except a smaller last one. If that gives more than `most` buckets, returns `most` equal
/// ones. Throws ConfigError for sizes of less than a byte.
std::vector<double> split_into_buckets(double model_bytes, double bucket_bytes,
                                       std::int64_t most = 256);

/// Gives the traffic that a bucket starts in step k; null: the bucket sends nothing in this step.
using TrafficSource = std::function<const Traffic*(std::int64_t k, std::int64_t bucket)>;

// The predictions throw ConfigError for an impossible model.

/// Predicts steps with the traffic of `source`. `links` are the model's. `waits_in_step`: the ranks
/// wait for an exchange in the step that starts it, as all-reduce does.
StepPrediction predict(const StepModel& model, const LinkTable& links, const TrafficSource& source,
                       bool waits_in_step);
/// `topology` may be null if no lane of the algorithm follows one; `codec` is the codec of
/// `schedule`.
StepPrediction predict_schedule(const StepModel& model, const ExchangeSchedule& schedule,
                                const Topology* topology, const Codec* codec);
/// A step without any communication.
StepPrediction predict_local(const StepModel& model);

}  // namespace gossamer::apps
