#pragma once
// Many workers in one process, without a model engine and without messages. The parameters of all
// ranks are rows of one array. Virtual ranks use the code of training itself: its algorithms, its
// sweep and its optimizers, in the order of its steps (core/step/step.hpp). All ranks go through
// every step together.
//
// Results do not depend on the number of threads: one thread computes each row, and sums over ranks
// run in rank order. Not thread safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apps/lab/simulate/virtual_network.hpp"
#include "base/buffer.hpp"
#include "base/host_stream.hpp"
#include "base/worker_pool.hpp"
#include "core/step/step.hpp"
#include "optim/schedule.hpp"

namespace gossamer::apps {

class VirtualRanks {
 public:
  struct Config {
    std::shared_ptr<const Topology> topology = {};
    int world_size = 1;
    /// Parameters of a rank.
    std::int64_t dim = 1;
    AlgorithmChoice algorithm = {};
    /// What the ranks send in place of their values; null: the values.
    const Codec* codec = nullptr;
    /// Null: the ranks only mix, and step() may not be called.
    std::shared_ptr<const Optimizer> optimizer = {};
    /// Must be given if there is an optimizer.
    std::shared_ptr<const Schedule> schedule = {};
    double weight_decay = 0.0;
    int num_threads = 1;
  };
  /// Writes the gradient of a rank, [dim], at its parameters x, [dim]. Several threads call this at
  /// once, for different ranks.
  using Gradient = std::function<void(int rank, std::span<const double> x, std::span<double> g)>;

  /// All parameters are zero at first. Throws ConfigError when there is not enough memory for the
  /// ranks, or when the algorithm cannot run on the topology.
  explicit VirtualRanks(Config config);

  [[nodiscard]] std::span<double> parameters(int rank);
  /// Lets `write` set the parameters of every rank, [dim]. Several threads call it at once, for
  /// different ranks.
  void begin_at(const std::function<void(int rank, std::span<double> x)>& write);
  /// Does the next round of the topology: x <- W x.
  void mix();
  /// Does a training step of all ranks. The parameters at the first call are the initial ones.
  void step(const Gradient& gradient);

  /// The mean over ranks, [dim]. In directed topologies it is the mean of s x (see push_sum.hpp),
  /// which mixing preserves.
  [[nodiscard]] std::vector<double> mean();
  /// The square root of the mean over ranks of ||x_i - centre||^2.
  [[nodiscard]] double distance_from(std::span<const double> centre);

 private:
  void for_all_ranks(const std::function<void(std::size_t)>& work);
  [[nodiscard]] PhasedStep step_of(std::size_t rank);
  /// Makes buckets and algorithms from the present parameters.
  void begin_training();
  [[nodiscard]] Block row_of(const Buffer& buffer, std::int64_t row) const;

  Config config_;
  WorkerPool pool_;
  Buffer x_;
  Buffer gradients_;
  std::int64_t num_rounds_ = 0;

  InlineStream stream_;
  VirtualNetwork network_;
  /// The lanes of mix(), one for each rank.
  std::vector<Lane*> mixing_lanes_;
  Progress progress_;
  std::vector<Bucket> buckets_;
  std::vector<std::unique_ptr<Algorithm>> algorithms_;
};

}  // namespace gossamer::apps
