// Tests models with parameters in bfloat16. A step that is too small for bfloat16 is not lost,
// because a float32 master copy keeps it.

#include "test/core/torch/scenario.hpp"

#include <memory>
#include <optional>
#include <utility>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/text.hpp"
#include "core/algorithms/algorithm.hpp"

namespace gossamer {
namespace {

/// A model with matrices of a given type and a bias that is always float32.
std::shared_ptr<Bag> make_bag(int rank, torch::Dtype type) {
  auto model = std::make_shared<Bag>();
  // Exact in bfloat16, so that both types start from the same numbers.
  model->add("w", wave({5, 3}, rank, torch::kBFloat16).to(type));
  model->add("b", wave({5}, rank + 1, torch::kFloat32));
  model->add("u", wave({2, 40}, rank + 2, torch::kBFloat16).to(type));
  // Not contiguous.
  model->add("t", wave({4, 6}, rank + 3, torch::kBFloat16).to(type).t());
  return model;
}

/// Gradients that do not depend on the parameters and are exact in bfloat16.
torch::Tensor linear_loss(Bag& model, int rank, int step) {
  torch::Tensor loss = torch::zeros({});
  double phase = 10.0 * rank + step;
  for (const auto& entry : model.named_parameters()) {
    const torch::Tensor slope = wave(entry.value().sizes(), phase++, torch::kBFloat16);
    loss = loss + (entry.value() * slope.to(entry.value().scalar_type())).to(torch::kFloat32).sum();
  }
  return loss;
}

Scenario scenario_of(torch::Dtype type) {
  Scenario scenario{.num_ranks = 4, .topology = "one-peer-exp", .optimizer = "adamw", .lr = 1e-4};
  scenario.bucket_bytes = 256;
  scenario.num_steps = 10;
  scenario.weight_decay = 0.01;
  scenario.make_model = [type](int rank) { return make_bag(rank, type); };
  scenario.loss = linear_loss;
  return scenario;
}

TEST(BFloat16Model, IsTheRoundedMasterCopyInEveryStep) {
  for (const Scenario& wide : with_every_algorithm(scenario_of(torch::kFloat32))) {
    SCOPED_TRACE(wide.text());
    Scenario narrow = wide;
    narrow.make_model = scenario_of(torch::kBFloat16).make_model;
    Trajectory expected = train_on_ranks(wide);
    const Trajectory actual = train_on_ranks(narrow);
    for (std::size_t step = 0; step < expected.size(); ++step) {
      for (std::size_t rank = 0; rank < expected[step].size(); ++rank) {
        for (auto& [name, values] : expected[step][rank]) {
          values = values.to(actual[step][rank].at(name).scalar_type());
        }
      }
    }
    expect_equal(actual, expected);
    // The steps are too small to show in bfloat16 one by one, but they add up.
    EXPECT_FALSE(torch::equal(actual.back()[0].at("u"), actual.front()[0].at("u")));
  }
}

TEST(BFloat16Model, IsAveragedByItsMasterCopies) {
  for (const int steps : {0, 1, 5}) {
    SCOPED_TRACE(steps);
    std::vector<Values> means(2);
    for (const torch::Dtype type : {torch::kFloat32, torch::kBFloat16}) {
      on_ranks(4, [&](Communicator& communicator) {
        const Scenario scenario = scenario_of(type);
        DecentralizedDataParallel<Bag> model(scenario.make_model(communicator.rank()), communicator,
                                             scenario.options());
        for (int step = 0; step < steps; ++step) {
          make_step(model, scenario, communicator.rank(), step);
        }
        const Values before = copy_values(model.module());
        {
          const AverageScope scope = model.global_average();
          if (communicator.rank() == 2) {
            means[type == torch::kBFloat16 ? 1 : 0] = copy_values(model.module());
          }
        }
        expect_equal(copy_values(model.module()), before);
        if (steps > 0) make_step(model, scenario, communicator.rank(), steps);
        model.drain();
      });
    }
    for (auto& [name, values] : means[0]) values = values.to(means[1].at(name).scalar_type());
    expect_equal(means[1], means[0]);
  }
}

TEST(BFloat16Model, AdoptsWhatIsWrittenToItBetweenSteps) {
  enum class Way { kDrained, kInScope, kData, kMemory };
  for (const Way way : {Way::kDrained, Way::kInScope, Way::kData, Way::kMemory}) {
    for (const bool averages : {false, true}) {
      SCOPED_TRACE(concat("way ", static_cast<int>(way), averages ? ", averaged" : ""));
      std::vector<Values> ends(2);
      for (const torch::Dtype type : {torch::kFloat32, torch::kBFloat16}) {
        on_ranks(2, [&](Communicator& communicator) {
          Scenario scenario = scenario_of(type);
          scenario.num_ranks = 2;
          const int rank = communicator.rank();
          DecentralizedDataParallel<Bag> model(scenario.make_model(rank), communicator,
                                               scenario.options());
          for (int step = 0; step < 3; ++step) make_step(model, scenario, rank, step);
          {
            std::optional<WriteScope> scope;
            if (way == Way::kDrained) model.drain();
            if (way == Way::kInScope || way == Way::kData) scope.emplace(model.write_parameters());
            const torch::NoGradGuard no_grad;
            torch::Tensor u = model.module()["u"];
            const torch::Tensor written = wave({2, 40}, 100 + rank, torch::kBFloat16).to(type);
            if (way == Way::kMemory) {
              u.set_data(written);
            } else if (way == Way::kData) {
              u.data().copy_(written);
            } else {
              u.copy_(written);
            }
          }
          if (averages) const AverageScope scope = model.global_average();
          for (int step = 3; step < 6; ++step) make_step(model, scenario, rank, step);
          model.drain();
          if (rank == 1) ends[type == torch::kBFloat16 ? 1 : 0] = copy_values(model.module());
        });
      }
      for (auto& [name, values] : ends[0]) values = values.to(ends[1].at(name).scalar_type());
      expect_equal(ends[1], ends[0]);
    }
  }
}

TEST(BFloat16Model, KeepsTheMasterCopiesOfWhatAWriteScopeLeavesAlone) {
  // The steps are too small for bfloat16; master copies that were written anew would lose them.
  std::vector<Values> ends(2);
  for (const torch::Dtype type : {torch::kFloat32, torch::kBFloat16}) {
    on_ranks(1, [&](Communicator& communicator) {
      Scenario scenario = scenario_of(type);
      scenario.num_ranks = 1;
      scenario.topology = "ring";
      DecentralizedDataParallel<Bag> model(scenario.make_model(0), communicator,
                                           scenario.options());
      for (int step = 0; step < 10; ++step) {
        make_step(model, scenario, 0, step);
        static_cast<void>(model.write_parameters());
      }
      ends[type == torch::kBFloat16 ? 1 : 0] = copy_values(model.module());
    });
  }
  for (auto& [name, values] : ends[0]) values = values.to(ends[1].at(name).scalar_type());
  expect_equal(ends[1], ends[0]);
}

TEST(BFloat16Model, AveragesItsBuffers) {
  on_ranks(2, [](Communicator& communicator) {
    Scenario scenario = scenario_of(torch::kBFloat16);
    scenario.num_ranks = 2;
    const auto bag = make_bag(0, torch::kBFloat16);
    torch::Tensor buffer = bag->add_buffer("running", torch::zeros({3}, torch::kBFloat16));
    DecentralizedDataParallel<Bag> model(bag, communicator, scenario.options());
    buffer.fill_(1.0 + communicator.rank());
    {
      const AverageScope scope = model.global_average();
      EXPECT_TRUE(torch::equal(buffer.to(torch::kFloat32), torch::full({3}, 1.5)));
    }
    EXPECT_TRUE(
        torch::equal(buffer.to(torch::kFloat32), torch::full({3}, 1.0 + communicator.rank())));
  });
}

}  // namespace
}  // namespace gossamer
