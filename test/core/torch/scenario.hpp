#pragma once
// Trains one model twice: once with DecentralizedDataParallel on rank threads, and once by hand. By
// hand means that one thread computes the gradients of all ranks with plain tensors, and the oracle
// (test/support/recursion/recursion.hpp) does the rest.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "comm/backends.hpp"
#include "core/torch/data_parallel.hpp"

namespace gossamer {

/// Numbers between -1 and 1 that depend on `phase` alone; no generator is involved.
torch::Tensor wave(at::IntArrayRef shape, double phase, torch::Dtype type = torch::kFloat64);

/// A module with the parameters and buffers that the test adds.
class Bag : public torch::nn::Module {
 public:
  torch::Tensor add(const std::string& name, torch::Tensor tensor, bool requires_grad = true) {
    return register_parameter(name, std::move(tensor), requires_grad);
  }
  torch::Tensor add_buffer(const std::string& name, torch::Tensor tensor) {
    return register_buffer(name, std::move(tensor));
  }
  [[nodiscard]] torch::Tensor operator[](const std::string& name) const;
  torch::Tensor forward(const torch::Tensor& input);
};

/// Two layers, 3 -> 5 -> 2, with the parameters w1, b1, w2 and b2. `phase` determines their values.
/// Bag::forward() computes the model.
std::shared_ptr<Bag> make_mlp(double phase, torch::Dtype type = torch::kFloat64);
/// The loss of such a model on the batch of a rank and step.
torch::Tensor mlp_loss(Bag& model, int rank, int step);

/// Runs `body` on rank threads; what one of them throws fails the test.
void on_ranks(int num_ranks, const std::function<void(Communicator&)>& body);
/// Runs a body that must end with a ConfigError on every rank. Returns the messages, by rank.
std::vector<std::string> config_errors(int num_ranks,
                                       const std::function<void(Communicator&)>& body);

/// Parameters with numbers of their own.
struct GroupOfParameters {
  /// A part of their names.
  std::string match;
  double lr_factor = 1.0;
  std::optional<double> weight_decay = {};
  /// Of the optimizer `sgd`.
  std::optional<double> momentum = {};
  /// Not empty: another one than the scenario's, without options.
  std::string optimizer = {};
};

struct Scenario {
  int num_ranks = 2;
  std::string algorithm = "gossip";
  /// As YAML.
  std::string algorithm_options = {};
  std::string topology = "ring";
  /// Ranks per node, for topologies that ask; 0: all.
  int node_size = 0;
  std::string optimizer = "sgd";
  double momentum = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;
  bool decay_bias_and_norm = false;
  std::vector<GroupOfParameters> groups = {};
  double lr = 0.1;
  std::int64_t bucket_bytes = 1;
  int num_steps = 6;
  /// Backward passes per step.
  int num_micro_batches = 1;
  bool mean_over_micro_batches = false;
  /// Ranks may start from different values; rank 0's count.
  std::function<std::shared_ptr<Bag>(int rank)> make_model = [](int rank) {
    return make_mlp(rank);
  };
  /// `batch` counts the backward passes of the run.
  std::function<torch::Tensor(Bag& model, int rank, int batch)> loss = mlp_loss;

  [[nodiscard]] World world(int rank = 0) const;
  [[nodiscard]] DataParallelOptions options() const;
  [[nodiscard]] std::string text() const;
};

/// The scenario with each algorithm of the table, with options that show in a few steps.
std::vector<Scenario> with_every_algorithm(const Scenario& scenario);

/// All parameters and buffers of a model, by name.
using Values = std::map<std::string, torch::Tensor>;
Values copy_values(const torch::nn::Module& model);
/// values[step][rank], the values after that step.
using Trajectory = std::vector<std::vector<Values>>;

/// One backward per micro-batch.
void make_step(DecentralizedDataParallel<Bag>& model, const Scenario& scenario, int rank, int step);
Trajectory train_on_ranks(const Scenario& scenario);
Trajectory train_by_hand(const Scenario& scenario);

/// The tolerance for float64. The two runs round differently; the mistakes that the tests look for
/// are a million times larger.
constexpr double kTolerance = 1e-12;

/// Within 1e-13.
void expect_near(const torch::Tensor& actual, const torch::Tensor& expected);
/// Checks every tensor of every rank and step; the largest difference allowed is `tolerance`.
void expect_near(const Trajectory& actual, const Trajectory& expected, double tolerance);
/// Compares train_on_ranks() with train_by_hand().
void expect_as_by_hand(const Scenario& scenario, double tolerance = kTolerance);
void expect_equal(const Trajectory& actual, const Trajectory& expected);
void expect_equal(const Values& actual, const Values& expected);

}  // namespace gossamer
