#pragma once
// Many workers in one process, without a model engine and without messages: their parameters are
// rows of one array. They mix and update with the very code of training, in the same order as its
// pipeline: x(t+1) = W(t-1) x(t) - update(gradient at x(t)); see docs/design.md.
//
// Results do not depend on the number of threads: every row is computed by one of them, sums over
// ranks run in rank order. Not thread safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apps/lab/simulate/round_plan.hpp"
#include "base/buffer.hpp"
#include "base/worker_pool.hpp"
#include "optim/optimizer.hpp"
#include "topology/push_sum.hpp"

namespace gossamer::apps {

class VirtualRanks {
 public:
  struct Config {
    std::shared_ptr<const Topology> topology = {};
    int world_size = 1;
    /// Parameters of a rank.
    std::int64_t dim = 1;
    /// Null: the ranks only mix.
    std::shared_ptr<const Optimizer> optimizer = {};
    double weight_decay = 0.0;
    int num_threads = 1;
  };
  /// Writes the gradient of a rank, [dim], at its parameters, [dim]. Called by several threads, for
  /// different ranks.
  using Gradient = std::function<void(int rank, std::span<const double> x, std::span<double> g)>;

  /// Parameters are zero. Throws ConfigError when there is not enough memory for the ranks.
  explicit VirtualRanks(Config config);

  [[nodiscard]] std::span<double> parameters(int rank);
  /// The next round of the topology: x <- W x.
  void mix();
  /// Gradients of all ranks at their parameters, then the round of the step before (none in the
  /// first step), then the update.
  void step(const Gradient& gradient, double lr);

  /// The mean over ranks, [dim]; in directed topologies of s x (see push_sum.hpp), which is what
  /// mixing keeps.
  [[nodiscard]] std::vector<double> mean();
  /// sqrt of the mean over ranks of ||x_i - centre||^2.
  [[nodiscard]] double distance_from(std::span<const double> centre);
  [[nodiscard]] std::int64_t num_rounds() const { return num_rounds_; }

 private:
  void for_all_ranks(const std::function<void(int)>& work);
  void for_all(std::int64_t count, const std::function<void(std::int64_t)>& work);
  /// Loads the plan of the next round, takes a copy of all parameters and computes its sums.
  const RoundPlan& begin_round();
  void compute_sum(const RoundPlan& plan, const RowWork& work);
  /// Appends what the work of a row takes.
  void inboxes_of(const RoundPlan& plan, const RowWork& work, std::vector<Inbox>& inboxes) const;
  [[nodiscard]] Block row_of(const Buffer& buffer, std::int64_t row) const;

  Config config_;
  WorkerPool pool_;
  Buffer x_;
  /// What is "sent": parameters before the round, then sums.
  Buffer sent_;
  std::int64_t num_sent_rows_ = 0;
  Buffer gradients_;
  std::vector<Buffer> states_;
  PushSum push_sum_;
  std::vector<RoundPlan> plans_;
  std::int64_t num_rounds_ = 0;
  std::int64_t num_updates_ = 0;
};

}  // namespace gossamer::apps
