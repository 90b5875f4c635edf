#include "test/core/torch/scenario.hpp"

#include <cmath>
#include <exception>
#include <utility>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

using Models = std::vector<std::shared_ptr<Bag>>;
using Optimizers = std::vector<std::unique_ptr<torch::optim::Optimizer>>;

std::vector<torch::Tensor> trainable(const Bag& model) {
  std::vector<torch::Tensor> tensors;
  for (const torch::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) tensors.push_back(parameter);
  }
  return tensors;
}

std::unique_ptr<torch::optim::OptimizerOptions> torch_options(const Scenario& scenario,
                                                              double weight_decay) {
  if (scenario.optimizer == "adamw") {
    auto options = std::make_unique<torch::optim::AdamWOptions>(scenario.lr);
    options->weight_decay(weight_decay);
    return options;
  }
  auto options = std::make_unique<torch::optim::SGDOptions>(scenario.lr);
  options->momentum(scenario.momentum).nesterov(scenario.nesterov).weight_decay(weight_decay);
  return options;
}

std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const Scenario& scenario,
                                                         const Bag& model) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const torch::Tensor& parameter : trainable(model)) {
    const bool decays = scenario.decay_bias_and_norm || parameter.dim() > 1;
    groups.emplace_back(std::vector{parameter},
                        torch_options(scenario, decays ? scenario.weight_decay : 0.0));
  }
  if (scenario.optimizer == "adamw") {
    return std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(scenario.lr));
  }
  return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(scenario.lr));
}

/// x_to <- sum over its arcs of weight * x_from; an edge is an arc from each member to each.
void mix(const Models& models, const Round& round) {
  const torch::NoGradGuard no_grad;
  const Round flat = flat_round(round, static_cast<int>(models.size()));
  std::vector<Arc> arcs = flat.arcs;
  for (const Edge& edge : flat.edges) append_arcs(edge, arcs);
  for (std::size_t p = 0; p < trainable(*models[0]).size(); ++p) {
    std::vector<torch::Tensor> before;
    for (const auto& model : models) before.push_back(trainable(*model)[p].clone());
    for (const auto& model : models) trainable(*model)[p].zero_();
    for (const Arc& arc : arcs) {
      trainable(*models[static_cast<std::size_t>(arc.to)])[p] +=
          arc.weight * before[static_cast<std::size_t>(arc.from)];
    }
  }
}

/// Gives every model the mean of all gradients. A missing gradient counts as zero.
void average_gradients(const Models& models) {
  const torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < trainable(*models[0]).size(); ++p) {
    torch::Tensor sum;
    for (const auto& model : models) {
      const torch::Tensor grad = trainable(*model)[p].grad();
      if (grad.defined()) sum = sum.defined() ? sum + grad : grad;
    }
    if (!sum.defined()) continue;
    for (const auto& model : models) {
      trainable(*model)[p].mutable_grad() = sum / static_cast<double>(models.size());
    }
  }
}

std::vector<Values> copy_all(const Models& models) {
  std::vector<Values> values;
  for (const auto& model : models) values.push_back(copy_values(*model));
  return values;
}

}  // namespace

torch::Tensor wave(at::IntArrayRef shape, double phase, torch::Dtype type) {
  std::int64_t numel = 1;
  for (const std::int64_t size : shape) numel *= size;
  return torch::arange(numel, torch::kFloat64).mul(0.7).add(phase).sin().reshape(shape).to(type);
}

torch::Tensor Bag::operator[](const std::string& name) const {
  const auto parameters = named_parameters();
  const torch::Tensor* found = parameters.find(name);
  return found != nullptr ? *found : named_buffers()[name];
}

torch::Tensor Bag::forward(const torch::Tensor& input) {
  const torch::Tensor hidden = torch::tanh(torch::linear(input, (*this)["w1"], (*this)["b1"]));
  return torch::linear(hidden, (*this)["w2"], (*this)["b2"]);
}

std::shared_ptr<Bag> make_mlp(double phase, torch::Dtype type) {
  auto model = std::make_shared<Bag>();
  model->add("w1", wave({5, 3}, phase, type));
  model->add("b1", wave({5}, phase + 1, type));
  model->add("w2", wave({2, 5}, phase + 2, type));
  model->add("b2", wave({2}, phase + 3, type));
  return model;
}

torch::Tensor mlp_loss(Bag& model, int rank, int step) {
  const double phase = 10.0 * rank + step;
  const torch::Dtype type = model["w1"].scalar_type();
  return (model.forward(wave({4, 3}, phase, type)) - wave({4, 2}, 2 * phase, type)).square().mean();
}

void on_ranks(int num_ranks, const std::function<void(Communicator&)>& body) {
  const LaunchOptions options{.num_ranks = num_ranks, .timeout_s = 60, .log_level = LogLevel::kOff};
  const int code = launch("threads", options, [&](Communicator& communicator, const World&) {
    at::set_num_threads(1);
    try {
      body(communicator);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << communicator.rank() << ": " << error.what();
      throw;
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
}

std::vector<std::string> config_errors(int num_ranks,
                                       const std::function<void(Communicator&)>& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(num_ranks));
  on_ranks(num_ranks, [&](Communicator& communicator) {
    try {
      body(communicator);
      ADD_FAILURE() << "rank " << communicator.rank() << " got no ConfigError";
    } catch (const ConfigError& error) {
      texts[static_cast<std::size_t>(communicator.rank())] = error.what();
    }
  });
  return texts;
}

World Scenario::world(int rank) const {
  return world_of(rank, num_ranks, node_size > 0 ? node_size : num_ranks);
}

DataParallelOptions Scenario::options() const {
  const std::string sgd =
      concat("momentum: ", momentum, ", nesterov: ", nesterov ? "true" : "false");
  return {
      .algorithm = algorithm,
      .topology = algorithm == "gossip" ? make_topology(topology, world()) : nullptr,
      .optimizer = make_optimizer(optimizer, optimizer == "sgd" ? Options::parse(sgd) : Options()),
      .schedule = make_schedule("constant", {.lr = lr}),
      .weight_decay = weight_decay,
      .decay_bias_and_norm = decay_bias_and_norm,
      .bucket_bytes = bucket_bytes,
      .mean_over_micro_batches = mean_over_micro_batches};
}

std::string Scenario::text() const {
  return concat(algorithm, " on ", topology, ", ", num_ranks, " ranks, ", optimizer,
                ", buckets of ", bucket_bytes, " bytes");
}

Values copy_values(const torch::nn::Module& model) {
  Values values;
  for (const auto& entry : model.named_parameters()) {
    values[entry.key()] = entry.value().detach().clone();
  }
  for (const auto& entry : model.named_buffers()) {
    values[entry.key()] = entry.value().detach().clone();
  }
  return values;
}

void make_step(DecentralizedDataParallel<Bag>& model, const Scenario& scenario, int rank,
               int step) {
  for (int micro = 0; micro < scenario.num_micro_batches; ++micro) {
    model.set_accumulate_grad(micro + 1 < scenario.num_micro_batches);
    scenario.loss(model.module(), rank, step * scenario.num_micro_batches + micro).backward();
  }
}

Trajectory train_on_ranks(const Scenario& scenario) {
  Trajectory trajectory(static_cast<std::size_t>(scenario.num_steps),
                        std::vector<Values>(static_cast<std::size_t>(scenario.num_ranks)));
  on_ranks(scenario.num_ranks, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    DecentralizedDataParallel<Bag> model(scenario.make_model(rank), communicator,
                                         scenario.options());
    for (int step = 0; step < scenario.num_steps; ++step) {
      make_step(model, scenario, rank, step);
      trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)] =
          copy_values(model.module());
    }
    model.drain();
  });
  return trajectory;
}

Trajectory train_by_hand(const Scenario& scenario) {
  const std::unique_ptr<Topology> topology = make_topology(scenario.topology, scenario.world());
  Models models;
  Optimizers optimizers;
  for (int rank = 0; rank < scenario.num_ranks; ++rank) {
    models.push_back(scenario.make_model(0));
    optimizers.push_back(torch_optimizer(scenario, *models.back()));
  }
  Trajectory trajectory;
  for (int step = 0; step < scenario.num_steps; ++step) {
    for (int rank = 0; rank < scenario.num_ranks; ++rank) {
      for (int micro = 0; micro < scenario.num_micro_batches; ++micro) {
        scenario
            .loss(*models[static_cast<std::size_t>(rank)], rank,
                  step * scenario.num_micro_batches + micro)
            .backward();
      }
    }
    // Round k starts after step k's update and arrives before the update of step k + 1.
    if (scenario.algorithm == "gossip" && step > 0) mix(models, topology->round(step - 1));
    if (scenario.algorithm == "allreduce") average_gradients(models);
    for (const auto& optimizer : optimizers) {
      optimizer->step();
      optimizer->zero_grad();
    }
    trajectory.push_back(copy_all(models));
  }
  return trajectory;
}

void expect_near(const Trajectory& actual, const Trajectory& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t step = 0; step < actual.size(); ++step) {
    ASSERT_EQ(actual[step].size(), expected[step].size());
    for (std::size_t rank = 0; rank < actual[step].size(); ++rank) {
      for (const auto& [name, tensor] : expected[step][rank]) {
        const torch::Tensor& other = actual[step][rank].at(name);
        ASSERT_EQ(other.sizes(), tensor.sizes());
        if (tensor.numel() == 0) continue;
        const double worst = (other - tensor).to(torch::kFloat64).abs().max().item<double>();
        ASSERT_TRUE(worst <= tolerance)
            << "step " << step << ", rank " << rank << ", " << name << ": off by " << worst;
      }
    }
  }
}

void expect_as_by_hand(const Scenario& scenario, double tolerance) {
  SCOPED_TRACE(scenario.text());
  expect_near(train_on_ranks(scenario), train_by_hand(scenario), tolerance);
}

void expect_equal(const Values& actual, const Values& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(torch::equal(actual.at(name), tensor)) << name;
  }
}

void expect_equal(const Trajectory& actual, const Trajectory& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t step = 0; step < actual.size(); ++step) {
    for (std::size_t rank = 0; rank < actual[step].size(); ++rank) {
      SCOPED_TRACE(concat("step ", step, ", rank ", rank));
      expect_equal(actual[step][rank], expected[step][rank]);
    }
  }
}

}  // namespace gossamer
