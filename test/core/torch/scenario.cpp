#include "test/core/torch/scenario.hpp"

#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/support/recursion/recursion.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/options.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

std::vector<torch::Tensor> trainable(const Bag& model) {
  std::vector<torch::Tensor> tensors;
  for (const torch::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) tensors.push_back(parameter);
  }
  return tensors;
}

/// All trainable parameters in one row.
std::vector<double> values_of(const Bag& model) {
  std::vector<double> values;
  for (const torch::Tensor& parameter : trainable(model)) {
    const torch::Tensor flat = parameter.detach().to(torch::kFloat64).flatten();
    values.insert(values.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return values;
}

void set_values(const Bag& model, std::vector<double> values) {
  const torch::NoGradGuard no_grad;
  double* begin = values.data();
  for (torch::Tensor& parameter : trainable(model)) {
    parameter.copy_(torch::from_blob(begin, parameter.sizes(), torch::kFloat64));
    begin += parameter.numel();
  }
}

/// Runs the backward passes of a step with the parameters `x`.
Recursion::Gradients gradients_of(const Scenario& scenario, Bag& model,
                                  const std::vector<double>& x, int rank, int step) {
  set_values(model, x);
  for (int micro = 0; micro < scenario.num_micro_batches; ++micro) {
    scenario.loss(model, rank, step * scenario.num_micro_batches + micro).backward();
  }
  Recursion::Gradients gradients;
  for (torch::Tensor& parameter : trainable(model)) {
    auto& values = gradients.emplace_back();
    if (!parameter.grad().defined()) continue;
    const torch::Tensor flat = parameter.grad().to(torch::kFloat64).flatten();
    values.assign(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    parameter.mutable_grad().reset();
  }
  return gradients;
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

std::vector<Scenario> with_every_algorithm(const Scenario& scenario) {
  std::vector<Scenario> scenarios;
  for (const std::string& name : algorithms_in_step()) {
    scenarios.push_back(scenario);
    scenarios.back().algorithm = name;
    scenarios.back().topology = topology_for(name, scenario.topology);
    if (name == "outer") scenarios.back().algorithm_options = "every: 2";
    if (name == "choco") scenarios.back().algorithm_options = "fraction: 0.3";
  }
  return scenarios;
}

World Scenario::world(int rank) const {
  return world_of(rank, num_ranks, node_size > 0 ? node_size : num_ranks);
}

DataParallelOptions Scenario::options() const {
  const AlgorithmChoice choice(algorithm, Options::parse(algorithm_options));
  const auto sgd_with = [this](double own) {
    return concat("momentum: ", own, ", nesterov: ", nesterov ? "true" : "false");
  };
  const std::string sgd = sgd_with(momentum);
  std::vector<ParameterGroup> parameter_groups;
  for (const GroupOfParameters& group : groups) {
    parameter_groups.push_back(
        {.match = group.match, .lr_factor = group.lr_factor, .weight_decay = group.weight_decay});
    if (!group.optimizer.empty()) {
      parameter_groups.back().optimizer = make_optimizer(group.optimizer);
    }
    if (!group.momentum) continue;
    const Options own = Options::parse(sgd_with(*group.momentum));
    parameter_groups.back().optimizer = make_optimizer("sgd", own);
  }
  return {
      .exchange = {.algorithm = choice,
                   .topology =
                       choice.needs_topology() ? make_topology(topology, world()) : nullptr},
      .optimizer = make_optimizer(
          optimizer, optimizer == "sgd" || optimizer == "muon" ? Options::parse(sgd) : Options()),
      .schedule = make_schedule("constant", {.lr = lr}),
      .weight_decay = weight_decay,
      .decay_bias_and_norm = decay_bias_and_norm,
      .parameter_groups = std::move(parameter_groups),
      .bucket_bytes = bucket_bytes,
      .mean_over_micro_batches = mean_over_micro_batches};
}

std::string Scenario::text() const {
  return concat(algorithm, " {", algorithm_options, "} on ", topology, ", ", num_ranks, " ranks, ",
                optimizer, ", buckets of ", bucket_bytes, " bytes");
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

namespace {

std::string name_of_parameter(const Bag& model, const torch::Tensor& parameter) {
  for (const auto& entry : model.named_parameters()) {
    if (entry.value().is_same(parameter)) return entry.key();
  }
  return {};
}

}  // namespace

Trajectory train_by_hand(const Scenario& scenario) {
  std::vector<std::shared_ptr<Bag>> models;
  Recursion::Setup setup{
      .algorithm = scenario.algorithm,
      .algorithm_options = scenario.algorithm_options,
      .topology = make_topology(scenario.topology, scenario.world()),
      .rule = {.type = scenario.optimizer,
               .momentum = scenario.momentum,
               .nesterov = scenario.nesterov},
      .lr = [&scenario](std::int64_t) { return scenario.lr; },
      .gradients =
          [&](const std::vector<double>& x, int rank, int step) {
            return gradients_of(scenario, *models[static_cast<std::size_t>(rank)], x, rank, step);
          }};
  for (int rank = 0; rank < scenario.num_ranks; ++rank) {
    models.push_back(scenario.make_model(0));
    setup.start.push_back(values_of(*models.back()));
  }
  for (const torch::Tensor& parameter : trainable(*models.front())) {
    const bool decays = scenario.decay_bias_and_norm || parameter.dim() > 1;
    setup.parameters.push_back(
        {.numel = parameter.numel(), .weight_decay = decays ? scenario.weight_decay : 0.0});
    const std::string name = name_of_parameter(*models.front(), parameter);
    const auto group = std::ranges::find_if(scenario.groups, [&](const GroupOfParameters& one) {
      return name.find(one.match) != std::string::npos;
    });
    Recursion::Parameter& own = setup.parameters.back();
    own.rule = setup.rule;
    own.rule->rows = parameter.dim() > 1 ? parameter.size(0) : 0;
    if (group == scenario.groups.end()) continue;
    if (!group->optimizer.empty()) {
      own.rule = reference::Rule{.type = group->optimizer, .rows = own.rule->rows};
      if (group->optimizer == "muon") {
        own.rule->momentum = 0.95;
        own.rule->nesterov = true;
      }
    }
    own.lr_factor = group->lr_factor;
    own.weight_decay = group->weight_decay.value_or(own.weight_decay);
    if (!group->momentum) continue;
    own.rule->momentum = *group->momentum;
  }
  Recursion recursion(std::move(setup));
  Trajectory trajectory;
  for (int step = 0; step < scenario.num_steps; ++step) {
    const Recursion::Vectors& vectors = recursion.advance();
    auto& ranks = trajectory.emplace_back();
    for (std::size_t rank = 0; rank < models.size(); ++rank) {
      set_values(*models[rank], vectors[rank]);
      ranks.push_back(copy_values(*models[rank]));
    }
  }
  return trajectory;
}

void expect_near(const torch::Tensor& actual, const torch::Tensor& expected) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_LE((actual - expected).abs().max().item<double>(), 1e-13);
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
