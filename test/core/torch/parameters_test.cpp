// Tests models of every kind: which tensors are trained, mixed, broadcast or left alone.

#include "core/torch/parameters.hpp"

#include "test/base/thrown.hpp"
#include "test/core/step/saved_state.hpp"
#include "test/core/torch/scenario.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/jit.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "base/text.hpp"
#include "core/algorithms/algorithm.hpp"
#include "optim/registry.hpp"

namespace gossamer {
namespace {

/// Compares with training by hand for every algorithm, with one bucket per parameter and with one
/// bucket for all.
void expect_as_by_hand_everywhere(const Scenario& scenario) {
  for (Scenario each : with_every_algorithm(scenario)) {
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1} << 20U}) {
      each.bucket_bytes = bytes;
      expect_as_by_hand(each);
    }
  }
}

Scenario three_ranks() {
  return {.num_ranks = 3, .optimizer = "adamw", .weight_decay = 0.01, .num_steps = 8};
}

TEST(Parameters, MayBeUsedSeveralTimes) {
  Scenario scenario = three_ranks();
  scenario.make_model = [](int rank) {
    auto model = std::make_shared<Bag>();
    model->add("w", wave({3, 3}, rank));
    model->add("b", wave({3}, rank + 1));
    return model;
  };
  scenario.loss = [](Bag& model, int rank, int step) {
    torch::Tensor x = wave({4, 3}, 3 * rank + step);
    for (int layer = 0; layer < 3; ++layer)
      x = torch::tanh(torch::linear(x, model["w"], model["b"]));
    return x.square().sum();
  };
  expect_as_by_hand_everywhere(scenario);
}

TEST(Parameters, MayBeTied) {
  Scenario scenario = three_ranks();
  scenario.make_model = [](int rank) {
    auto model = std::make_shared<Bag>();
    const torch::Tensor embedding = model->add("encoder", wave({4, 3}, rank));
    model->add("bias", wave({4}, rank + 1));
    model->add("decoder", embedding);
    return model;
  };
  scenario.loss = [](Bag& model, int rank, int step) {
    const torch::Tensor x = torch::embedding(model["encoder"], torch::tensor({rank, step % 4}));
    return torch::linear(torch::tanh(x), model["decoder"], model["bias"]).square().sum();
  };
  const Trajectory trajectory = train_on_ranks(scenario);
  // The training by hand would see the tensor twice, so its twin has it once.
  Scenario twin = scenario;
  twin.make_model = [](int rank) {
    auto model = std::make_shared<Bag>();
    model->add("encoder", wave({4, 3}, rank));
    model->add("bias", wave({4}, rank + 1));
    return model;
  };
  twin.loss = [](Bag& model, int rank, int step) {
    const torch::Tensor x = torch::embedding(model["encoder"], torch::tensor({rank, step % 4}));
    return torch::linear(torch::tanh(x), model["encoder"], model["bias"]).square().sum();
  };
  expect_near(trajectory, train_by_hand(twin), kTolerance);
  for (const auto& ranks : trajectory) {
    for (const Values& values : ranks) {
      EXPECT_TRUE(torch::equal(values.at("encoder"), values.at("decoder")));
    }
  }
}

TEST(Parameters, ThatAreNeverUsedAreOnlyMixed) {
  Scenario scenario = three_ranks();
  scenario.make_model = [](int rank) {
    auto model = make_mlp(rank);
    model->add("idle", wave({3, 2}, rank));
    return model;
  };
  expect_as_by_hand_everywhere(scenario);
}

TEST(Parameters, MayBeUsedInSomeStepsOnSomeRanksOrFromALaterStepOn) {
  using Rests = bool (*)(int rank, int step);
  for (const Rests rests :
       {Rests([](int, int step) { return step % 3 == 1; }),
        Rests([](int rank, int step) { return step > 0 && (step + rank) % 3 == 0; }),
        Rests([](int, int step) { return step < 3; })}) {
    Scenario scenario = three_ranks();
    scenario.loss = [rests](Bag& model, int rank, int step) {
      const torch::Tensor hidden =
          torch::linear(wave({4, 3}, rank + step), model["w1"], model["b1"]);
      return rests(rank, step)
                 ? hidden.square().sum()
                 : torch::linear(torch::tanh(hidden), model["w2"], model["b2"]).square().sum();
    };
    expect_as_by_hand_everywhere(scenario);
  }
}

TEST(Parameters, OfTwoTypesGetBucketsOfTheirOwn) {
  Scenario scenario = three_ranks();
  scenario.bucket_bytes = 1 << 20U;
  scenario.make_model = [](int rank) {
    auto model = make_mlp(rank);
    model->add("scale", wave({2}, rank, torch::kFloat32));
    model->add("shift", wave({}, rank, torch::kFloat32));
    return model;
  };
  scenario.loss = [](Bag& model, int rank, int step) {
    const torch::Tensor out = model.forward(wave({4, 3}, rank + step));
    return (out.to(torch::kFloat32) * model["scale"] + model["shift"]).square().sum();
  };
  expect_as_by_hand(scenario, 1e-4);
  on_ranks(2, [&](Communicator& communicator) {
    Scenario two = scenario;
    two.num_ranks = 2;
    DecentralizedDataParallel<Bag> model(two.make_model(0), communicator, two.options());
    make_step(model, two, communicator.rank(), 0);
    ASSERT_EQ(model.engine().plan().buckets.size(), 2U);
    EXPECT_NE(model.engine().plan().buckets[0].dtype, model.engine().plan().buckets[1].dtype);
  });
}

TEST(Parameters, MayBeEmptyOrSingleNumbers) {
  Scenario scenario = three_ranks();
  scenario.make_model = [](int rank) {
    auto model = std::make_shared<Bag>();
    model->add("empty", torch::zeros({0, 3}, torch::kFloat64));
    model->add("number", wave({}, rank));
    model->add("unused", torch::zeros({0}, torch::kFloat64));
    return model;
  };
  scenario.loss = [](Bag& model, int rank, int step) {
    return model["empty"].sum() + (model["number"] - rank - step).square();
  };
  expect_as_by_hand_everywhere(scenario);
}

/// A convolution whose weight has the memory layout that the test asks for.
std::shared_ptr<Bag> make_conv(double phase, bool channels_last) {
  auto model = std::make_shared<Bag>();
  torch::Tensor weight = wave({4, 3, 3, 3}, phase);
  if (channels_last) weight = weight.contiguous(at::MemoryFormat::ChannelsLast);
  model->add("weight", weight);
  model->add("bias", wave({4}, phase + 1));
  return model;
}

torch::Tensor conv_loss(Bag& model, int rank, int step) {
  torch::Tensor images = wave({2, 3, 6, 6}, rank + step);
  if (!model["weight"].is_contiguous()) {
    images = images.contiguous(at::MemoryFormat::ChannelsLast);
  }
  return torch::conv2d(images, model["weight"], model["bias"]).square().mean();
}

TEST(Parameters, InChannelsLastKeepTheirStridesAndNumbers) {
  Scenario scenario = three_ranks();
  scenario.loss = conv_loss;
  scenario.make_model = [](int rank) { return make_conv(rank, false); };
  const Trajectory plain = train_by_hand(scenario);
  scenario.make_model = [](int rank) { return make_conv(rank, true); };
  const Trajectory trajectory = train_on_ranks(scenario);
  expect_near(trajectory, plain, 1e-11);
  for (const auto& ranks : trajectory) {
    for (const Values& values : ranks) {
      EXPECT_TRUE(values.at("weight").is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_FALSE(values.at("weight").is_contiguous());
    }
  }
}

/// The values in the order of the memory.
std::vector<char> bytes_of(const torch::Tensor& tensor) {
  const auto* const first = static_cast<const char*>(tensor.data_ptr());
  return {first, first + tensor.nbytes()};
}

TEST(Parameters, AreSavedInRowMajorOrderWhateverTheirStrides) {
  Scenario scenario = three_ranks();
  scenario.loss = conv_loss;
  on_ranks(3, [&](Communicator& communicator) {
    const auto make = [&](bool channels_last) {
      return DecentralizedDataParallel<Bag>(make_conv(0, channels_last), communicator,
                                            scenario.options());
    };
    auto trained = make(true);
    for (int step = 0; step < 2; ++step) make_step(trained, scenario, communicator.rank(), step);
    const SavedState state = saved(trained);
    const torch::Tensor weight = trained.module()["weight"].detach().clone();
    EXPECT_EQ(state.blocks.at("weight"), bytes_of(weight.contiguous()));
    // Models of either layout go on from it, with the states of the optimizer.
    for (const bool channels_last : {false, true}) {
      auto model = make(channels_last);
      load(model, state);
      EXPECT_TRUE(model.module()["weight"].equal(weight));
      EXPECT_EQ(saved(model).blocks, state.blocks);
      model.drain();
    }
    trained.drain();
  });
}

TEST(Parameters, TakeGradientsOfAnyLayout) {
  const auto make_loss = [](bool preset) {
    return [preset](Bag& model, int rank, int step) {
      const torch::Tensor w = model["w1"];
      if (preset && !w.grad().defined()) {
        // Autograd adds into an existing gradient and keeps its layout.
        w.mutable_grad() = torch::zeros({3, 5}, torch::kFloat64).t();
      }
      // A transposed gradient, an expanded one, and one of ordinary layout.
      return (w.t() * wave({3, 5}, rank + step)).sum() + w.sum() + mlp_loss(model, rank, step);
    };
  };
  Scenario scenario = three_ranks();
  scenario.loss = make_loss(true);
  const Trajectory trajectory = train_on_ranks(scenario);
  scenario.loss = make_loss(false);
  expect_near(trajectory, train_by_hand(scenario), kTolerance);
}

TEST(Parameters, OfBiasesAndNormalisationAreDecayedOnlyOnRequest) {
  const std::vector<NamedTensor> tensors = {
      {"layer.weight", wave({2, 3}, 0)}, {"layer.bias", wave({2}, 0)},
      {"odd.bias", wave({2, 2}, 0)},     {"bias", wave({2, 2}, 0)},
      {"unbias", wave({2, 2}, 0)},       {"norm.weight", wave({2}, 0)}};
  const auto decays = [&](bool decay_bias_and_norm) {
    std::vector<double> values;
    for (const ParameterInfo& info : describe_parameters(
             tensors, {.weight_decay = 0.5, .decay_bias_and_norm = decay_bias_and_norm})) {
      values.push_back(info.weight_decay);
    }
    return values;
  };
  EXPECT_EQ(decays(false), (std::vector<double>{0.5, 0, 0, 0, 0.5, 0}));
  EXPECT_EQ(decays(true), std::vector<double>(6, 0.5));
}

TEST(Parameters, AreInTheFirstGroupThatFits) {
  const std::vector<NamedTensor> tensors = {{"layer.weight", wave({2, 3}, 0)},
                                            {"layer.bias", wave({2}, 0)},
                                            {"norm.weight", wave({2}, 0)},
                                            {"head.weight", wave({2, 2}, 0)}};
  const std::shared_ptr<const Optimizer> own = make_optimizer("sgd");
  const std::vector<ParameterGroup> groups = {
      {.match = "norm|bias$", .weight_decay = 0.25},
      {.match = "^(layer|head)", .lr_factor = 3.0, .optimizer = own}};
  const auto infos = describe_parameters(tensors, {.weight_decay = 0.5, .groups = groups});
  EXPECT_EQ(infos[0].lr_factor, 3.0);
  EXPECT_EQ(infos[0].weight_decay, 0.5);
  EXPECT_EQ(infos[0].optimizer, own);
  EXPECT_EQ(infos[1].lr_factor, 1.0);
  EXPECT_EQ(infos[1].weight_decay, 0.25);
  EXPECT_EQ(infos[1].optimizer, nullptr);
  EXPECT_EQ(infos[2].weight_decay, 0.25);
  EXPECT_EQ(infos[3].lr_factor, 3.0);

  for (const char* const nothing : {"conv", "layer.bias"}) {
    std::vector<ParameterGroup> more = groups;
    more.push_back({.match = nothing});
    const std::string what = what_of<ConfigError>([&] {
      static_cast<void>(describe_parameters(tensors, {.weight_decay = 0.5, .groups = more}));
    });
    EXPECT_TRUE(
        contains(what, concat("no parameter is left for the group of parameters '", nothing, "'")));
    EXPECT_TRUE(contains(what, "layer.weight, layer.bias, norm.weight, head.weight"));
  }
}

TEST(Parameters, OfAGroupMayBeVectors) {
  const std::vector<NamedTensor> tensors = {
      {"a", wave({2, 3}, 0)}, {"b", wave({2}, 0)}, {"head", wave({2, 2}, 0)}, {"c", wave({}, 0)}};
  const std::shared_ptr<const Optimizer> muon = make_optimizer("muon");
  const std::shared_ptr<const Optimizer> adamw = make_optimizer("adamw");
  const std::vector<ParameterGroup> groups = {
      {.match = "head", .vectors = true, .optimizer = adamw}};
  const auto infos = describe_parameters(tensors, {.optimizer = muon, .groups = groups});
  EXPECT_EQ(infos[0].optimizer, muon) << "named, because another one is of another kind";
  for (const std::size_t i : {1U, 2U, 3U}) EXPECT_EQ(infos[i].optimizer, adamw);
}

TEST(Parameters, ThatAreMatricesHaveTheirRowsOutside) {
  const std::shared_ptr<const Optimizer> muon = make_optimizer("muon");
  const auto refusal_of = [&](const torch::Tensor& tensor) {
    const std::vector<NamedTensor> tensors = {{"a", tensor}};
    return what_of<ConfigError>(
        [&] { static_cast<void>(describe_parameters(tensors, {.optimizer = muon})); });
  };
  EXPECT_EQ(refusal_of(wave({2, 3}, 0)), "");
  EXPECT_EQ(refusal_of(wave({2, 3, 4, 5}, 0).contiguous(torch::MemoryFormat::ChannelsLast)), "");
  EXPECT_TRUE(contains(refusal_of(wave({2, 3}, 0).t()), "parameter a has its rows inside"));
}

TEST(Parameters, ThatAreEmbeddingsAreDoubtedWhereTheyWouldBecomeOrthogonal) {
  struct Reader : torch::nn::Module {
    torch::nn::Embedding wte = register_module("wte", torch::nn::Embedding(5, 4));
    torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 5));
  };
  const auto model = std::make_shared<Reader>();
  const std::vector<NamedTensor> tensors = collect_tensors(*model).trainable;
  const std::shared_ptr<const Optimizer> muon = make_optimizer("muon");
  const std::shared_ptr<const Optimizer> adamw = make_optimizer("adamw");
  const auto warning = [&](const std::shared_ptr<const Optimizer>& base,
                           const std::vector<ParameterGroup>& groups) {
    const auto infos = describe_parameters(tensors, {.optimizer = base, .groups = groups});
    return embedding_warning(*model, tensors, infos, *base);
  };
  EXPECT_TRUE(contains(warning(muon, {}), "updates the embeddings wte.weight;"));
  EXPECT_TRUE(contains(warning(muon, {{.vectors = true, .optimizer = adamw}}), "wte.weight"));
  EXPECT_EQ(warning(muon, {{.match = "wte", .vectors = true, .optimizer = adamw}}), "");
  EXPECT_EQ(warning(adamw, {}), "");
  EXPECT_TRUE(contains(warning(adamw, {{.match = "wte", .optimizer = muon}}), "wte.weight"));
}

std::shared_ptr<Bag> make_with_rest(int rank) {
  auto model = make_mlp(rank);
  model->add("frozen", wave({7}, rank, torch::kFloat32), false);
  model->add("frozen_half", wave({7}, rank, torch::kFloat16), false);
  model->add_buffer("count", torch::full({2}, rank + 1, torch::kInt64));
  model->add_buffer("mask", torch::full({5}, rank == 0, torch::kBool));
  model->add_buffer("mean", wave({3}, rank));
  model->add_buffer("gaps", wave({4, 6}, rank).slice(1, 0, 6, 2));
  model->add_buffer("repeated", torch::full({1}, rank + 1.0).expand({4}));
  return model;
}

TEST(Parameters, MayBeUsedByTorchScript) {
  // TorchScript's executor profiles the first runs, then computes another graph than before.
  static const char* const kSource = R"(
def loss(x, y, w1, b1, w2, b2):
    h = torch.tanh(torch.matmul(x, w1.t()) + b1)
    h = h * torch.sigmoid(h) + h
    return torch.mean(torch.pow(torch.matmul(h, w2.t()) + b2 - y, 2))
)";
  Scenario scenario = three_ranks();
  scenario.num_steps = 20;
  std::vector<std::shared_ptr<torch::jit::CompilationUnit>> units(3);
  for (auto& unit : units) unit = torch::jit::compile(kSource);
  scenario.loss = [&](Bag& model, int rank, int step) {
    return units[static_cast<std::size_t>(rank)]
        ->run_method("loss", wave({4, 3}, rank + step), wave({4, 2}, rank - step), model["w1"],
                     model["b1"], model["w2"], model["b2"])
        .toTensor();
  };
  const Trajectory trajectory = train_on_ranks(scenario);
  scenario.loss = [](Bag& model, int rank, int step) {
    torch::Tensor h =
        torch::tanh(torch::linear(wave({4, 3}, rank + step), model["w1"], model["b1"]));
    h = h * torch::sigmoid(h) + h;
    return (torch::linear(h, model["w2"], model["b2"]) - wave({4, 2}, rank - step)).square().mean();
  };
  expect_near(trajectory, train_by_hand(scenario), 1e-11);
}

TEST(FrozenParametersAndBuffers, ComeFromRankZeroAndThenStayAsTheyAre) {
  on_ranks(3, [](Communicator& communicator) {
    Scenario scenario = three_ranks();
    const Values of_rank_zero = copy_values(*make_with_rest(0));
    DecentralizedDataParallel<Bag> model(make_with_rest(communicator.rank()), communicator,
                                         scenario.options());
    expect_equal(copy_values(model.module()), of_rank_zero);
    for (int step = 0; step < 4; ++step) make_step(model, scenario, communicator.rank(), step);
    model.drain();
    const Values after = copy_values(model.module());
    for (const char* const name :
         {"frozen", "frozen_half", "count", "mask", "mean", "gaps", "repeated"}) {
      EXPECT_TRUE(torch::equal(after.at(name), of_rank_zero.at(name))) << name;
    }
    EXPECT_EQ(model.engine().parameters().size(), 4U);
  });
}

TEST(Parameters, AreTheTensorsOfTheModuleBeforeAndAfter) {
  // A holder of a parameter (an optimizer, a test) still holds it after it has moved into a bucket.
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario;
    auto bag = make_mlp(0);
    const torch::Tensor held = (*bag)["w1"];
    DecentralizedDataParallel<Bag> model(bag, communicator, scenario.options());
    make_step(model, scenario, communicator.rank(), 0);
    EXPECT_TRUE(held.is_same((*bag)["w1"]));
    EXPECT_TRUE(held.is_leaf());
    EXPECT_TRUE(held.requires_grad());
    EXPECT_EQ(held.data_ptr(), (*bag)["w1"].data_ptr());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(held.data_ptr()) % 128, 0U);
  });
}

}  // namespace
}  // namespace gossamer
