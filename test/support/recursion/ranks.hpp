#pragma once
// What the recursions of all algorithms share: the setup, the state of the ranks, mixing, and the
// update of a rank.

#include "test/optim/reference.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include "base/options.hpp"
#include "core/bucket/gradient_policy.hpp"
#include "topology/topology.hpp"

namespace gossamer::recursion {

/// vectors[rank]: all parameters of a rank, one after the other.
using Vectors = std::vector<std::vector<double>>;
/// Gradients of one rank, per parameter; an empty one is missing.
using Gradients = std::vector<std::vector<double>>;

struct Parameter {
  std::int64_t numel = 0;
  double weight_decay = 0.0;
  double lr_factor = 1.0;
  /// Not set: that of the setup.
  std::optional<reference::Rule> rule = {};
  /// Index of the parameter's bucket.
  std::size_t bucket = 0;
};

struct Setup {
  std::string algorithm = {};
  /// The options of the algorithm, as YAML.
  std::string algorithm_options = {};
  std::shared_ptr<const Topology> topology = {};
  /// fp32: blocks are sent as they are.
  std::string codec = "fp32";
  reference::Rule rule = {};
  /// The learning rate after a number of updates.
  std::function<double(std::int64_t num_updates)> lr = {};
  GradientOptions clipping = {};
  std::vector<Parameter> parameters = {};
  /// The initial parameters.
  Vectors start = {};
  /// The rank that encodes a value of a sum.
  std::function<std::size_t(std::size_t value)> owner = {};
  std::function<Gradients(const std::vector<double>& x, int rank, int step)> gradients = {};
  /// True if a rank's gradients hold a NaN in a step.
  std::function<bool(int rank, int step)> breaks = [](int, int) { return false; };
};

struct Step {
  int number = 0;
  /// Those of each rank.
  std::vector<Gradients> gradients = {};
  /// Whether each rank's gradients hold a NaN.
  std::vector<bool> skips = {};
};

/// The mean over the ranks.
std::vector<double> mean_of(const Vectors& values);

class Ranks {
 public:
  explicit Ranks(Setup given);

  Setup setup;
  Options options;
  /// The parameters of the ranks.
  Vectors x;
  /// The parameters before mixing, which some rules look at.
  Vectors before;
  /// The parameters after every step.
  std::vector<Vectors> past;
  /// Push-sum: in directed topologies x holds z = x / s, with s x <- A (s x) and s <- A s.
  /// Otherwise s stays 1.
  Eigen::VectorXd push_weights;
  std::vector<std::int64_t> num_updates;
  /// optimizers[rank][parameter]
  std::vector<std::vector<reference::Optimizer>> optimizers;

  [[nodiscard]] std::size_t size() const { return setup.start.size(); }
  [[nodiscard]] std::size_t num_values() const { return setup.start.front().size(); }

  /// The matrix of round k of the topology.
  [[nodiscard]] Eigen::MatrixXd mixing(std::int64_t k) const;
  /// The values after round k, encoded by the setup's codec on their way.
  [[nodiscard]] Vectors mixed(std::int64_t k, const Vectors& values) const;
  /// The same without a codec.
  [[nodiscard]] Vectors mixed_plainly(std::int64_t k, const Vectors& values) const;
  /// Mixes the parameters in round k.
  void mix(std::int64_t k);
  /// Gives every rank the mean over all ranks. A missing gradient counts as one of zeros. A codec
  /// rounds what the ranks send, and their sum.
  void average(std::vector<Gradients>& gradients) const;

  /// Clips one rank's gradients by the definition of each mode.
  void clip(std::size_t rank, Gradients& parts);
  /// A step of one rank's rules.
  void apply(std::size_t rank, const Gradients& parts);
  /// Clips the gradients of all ranks, changes them by `change`, and applies them. Nothing happens
  /// in a step in which the gradients of any rank hold a NaN.
  void update(
      Step& step, const std::function<void(std::size_t rank, Gradients& parts)>& change =
                      [](std::size_t, Gradients&) {});

 private:
  void apply_rule(std::size_t rank, std::size_t parameter,
                  std::pair<std::size_t, std::size_t> range, const std::vector<double>& gradient,
                  double lr);

  /// One norm per rank; negative: there has been no step.
  std::vector<double> last_norm_;
};

/// Makes one step of an algorithm.
using Algorithm = std::function<void(Ranks& ranks, Step& step)>;

}  // namespace gossamer::recursion
