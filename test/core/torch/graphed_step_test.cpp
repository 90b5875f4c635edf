// Tests recorded steps against ordinary steps. A stand-in for the graph computes again, where a GPU
// would replay, into the tensors that were recorded.

#include "core/torch/graphed_step.hpp"

#include "test/core/torch/scenario.hpp"

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.hpp"
#include "core/algorithms/algorithm.hpp"

namespace gossamer {
namespace {

class FakeGraph : public StepGraph {
 public:
  std::vector<at::Tensor> capture(const Work& work) override {
    work_ = work;
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& result : compute()) {
      // Recording runs no work, so no test may use a value before a replay.
      results_.push_back(result.defined() ? torch::full_like(result, 1e30) : at::Tensor());
    }
    return results_;
  }

  void replay() override {
    const std::vector<at::Tensor> now = compute();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (results_[i].defined()) results_[i].copy_(now[i]);
    }
    ++num_replays_;
  }

  [[nodiscard]] int num_replays() const { return num_replays_; }

 private:
  std::vector<at::Tensor> compute() {
    const torch::AutoGradMode grad(true);
    return work_();
  }

  Work work_;
  std::vector<at::Tensor> results_;
  int num_replays_ = 0;
};

/// The batch of a rank and step; the loss has it as its only input.
torch::Tensor batch_of(int rank, int step, std::int64_t rows, torch::Dtype type) {
  return wave({rows, 5}, 10.0 * rank + step, type);
}

torch::Tensor loss_of(Bag& model, const torch::Tensor& batch) {
  const torch::Tensor inputs = batch.narrow(1, 0, 3);
  return (model.forward(inputs) - batch.narrow(1, 3, 2)).square().mean();
}

struct Training {
  Scenario scenario = {};
  torch::Dtype type = torch::kFloat32;
  bool graphed = true;
  /// Rows of the batch of a step.
  std::function<std::int64_t(int step)> rows = [](int) { return 4; };
};

struct Outcome {
  Trajectory trajectory;
  std::vector<double> losses;
  int num_replays = 0;
};

Outcome train(const Training& training) {
  const Scenario& scenario = training.scenario;
  Outcome outcome;
  outcome.trajectory.assign(static_cast<std::size_t>(scenario.num_steps),
                            std::vector<Values>(static_cast<std::size_t>(scenario.num_ranks)));
  on_ranks(scenario.num_ranks, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    DecentralizedDataParallel<Bag> model(scenario.make_model(rank), communicator,
                                         scenario.options());
    auto graph = std::make_unique<FakeGraph>();
    const FakeGraph& fake = *graph;
    GraphedStep graphed(model.core(), std::move(graph), [&](const std::vector<at::Tensor>& batch) {
      return loss_of(model.module(), batch[0]);
    });
    for (int step = 0; step < scenario.num_steps; ++step) {
      const torch::Tensor batch = batch_of(rank, step, training.rows(step), training.type);
      torch::Tensor loss;
      if (training.graphed) {
        loss = graphed.step({batch});
      } else {
        loss = loss_of(model.module(), batch);
        loss.backward();
      }
      for (const torch::Tensor& parameter : model.parameters()) {
        EXPECT_FALSE(parameter.grad().defined());
      }
      if (rank == 0) outcome.losses.push_back(loss.item<double>());
      outcome.trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)] =
          copy_values(model.module());
    }
    EXPECT_EQ(graphed.recorded(), training.graphed);
    model.drain();
    if (rank == 0) outcome.num_replays = fake.num_replays();
  });
  return outcome;
}

Training training_of(torch::Dtype type) {
  Training training;
  training.type = type;
  training.scenario = {
      .num_ranks = 3, .topology = "one-peer-exp", .optimizer = "adamw", .lr = 0.01};
  training.scenario.num_ranks = 4;
  training.scenario.num_steps = 8;
  training.scenario.bucket_bytes = 128;
  training.scenario.make_model = [type](int rank) { return make_mlp(rank, type); };
  return training;
}

void expect_as_usual(Training training, int num_replays) {
  const Outcome graphed = train(training);
  training.graphed = false;
  const Outcome usual = train(training);
  expect_equal(graphed.trajectory, usual.trajectory);
  EXPECT_EQ(graphed.losses, usual.losses);
  EXPECT_EQ(graphed.num_replays, num_replays);
}

TEST(GraphedStep, TrainsAsUsual) {
  for (const torch::Dtype type : {torch::kFloat32, torch::kBFloat16}) {
    Training training = training_of(type);
    for (const Scenario& scenario : with_every_algorithm(training.scenario)) {
      SCOPED_TRACE(scenario.text());
      training.scenario = scenario;
      expect_as_usual(training, 5);
    }
  }
}

TEST(GraphedStep, LeavesOutParametersWithoutAGradient) {
  Training training = training_of(torch::kFloat32);
  training.scenario.make_model = [](int rank) {
    auto model = make_mlp(rank, torch::kFloat32);
    model->add("unused", wave({3}, rank, torch::kFloat32));
    return model;
  };
  expect_as_usual(training, 5);
}

TEST(GraphedStep, ComputesBatchesOfAnotherShapeAsUsual) {
  Training training = training_of(torch::kFloat32);
  training.rows = [](int step) { return step == 5 || step == 0 ? 7 : 4; };
  expect_as_usual(training, 4);
}

TEST(GraphedStep, GoesOnAsUsualWhereRecordingHasFailed) {
  on_ranks(1, [](Communicator& communicator) {
    Scenario scenario = training_of(torch::kFloat32).scenario;
    scenario.num_ranks = 1;
    DecentralizedDataParallel<Bag> model(scenario.make_model(0), communicator, scenario.options());
    int calls = 0;
    GraphedStep graphed(model.core(), std::make_unique<FakeGraph>(),
                        [&](const std::vector<at::Tensor>& batch) {
                          // This loss leaves gradients behind when it is recorded for the first
                          // time.
                          const torch::Tensor loss = loss_of(model.module(), batch[0]);
                          if (++calls == 4) {
                            loss.backward();
                            throw std::runtime_error("this model reads a value");
                          }
                          return loss;
                        });
    const torch::Tensor batch = batch_of(0, 0, 4, torch::kFloat32);
    for (int number = 0; number < 3; ++number) graphed.step({batch});
    EXPECT_THROW(graphed.step({batch}), std::runtime_error);
    for (const torch::Tensor& parameter : model.parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
    EXPECT_FALSE(graphed.recorded());
    loss_of(model.module(), batch).backward();
    graphed.step({batch});
    EXPECT_TRUE(graphed.recorded());
    model.drain();
  });
}

TEST(GraphedStep, RecordsTheShapeThatComesTwice) {
  Training training = training_of(torch::kFloat32);
  training.rows = [](int step) { return step == 3 || step == 5 ? 7 : 4; };
  // Steps 0 to 2 run as usual. Steps 3 to 6 also do, because they follow another shape. Step 7 is
  // recorded.
  expect_as_usual(training, 1);
}

TEST(GraphedStep, MayBeAveragedInBetween) {
  on_ranks(2, [](Communicator& communicator) {
    Scenario scenario = training_of(torch::kFloat32).scenario;
    scenario.num_ranks = 2;
    DecentralizedDataParallel<Bag> model(scenario.make_model(communicator.rank()), communicator,
                                         scenario.options());
    GraphedStep graphed(
        model.core(), std::make_unique<FakeGraph>(),
        [&](const std::vector<at::Tensor>& batch) { return loss_of(model.module(), batch[0]); });
    const auto step = [&](int number) {
      graphed.step({batch_of(communicator.rank(), number, 4, torch::kFloat32)});
    };
    for (int number = 0; number < 5; ++number) step(number);
    {
      const AverageScope scope = model.global_average();
      EXPECT_THROW(step(5), std::logic_error);
    }
    step(6);
    model.drain();
  });
}

TEST(GraphedStep, ReadsWhatWasWrittenWhereItWasRecorded) {
  // A graph reads the memory of its recording, which rebinding a parameter leaves behind.
  on_ranks(2, [](Communicator& communicator) {
    Scenario scenario = training_of(torch::kFloat32).scenario;
    scenario.num_ranks = 2;
    DecentralizedDataParallel<Bag> model(scenario.make_model(0), communicator, scenario.options());
    const void* read = nullptr;
    GraphedStep graphed(model.core(), std::make_unique<FakeGraph>(),
                        [&](const std::vector<at::Tensor>& batch) {
                          read = model.module()["w1"].data_ptr();
                          return loss_of(model.module(), batch[0]);
                        });
    const torch::Tensor batch = batch_of(communicator.rank(), 0, 4, torch::kFloat32);
    for (int number = 0; number < 5; ++number) graphed.step({batch});
    ASSERT_TRUE(graphed.recorded());
    const void* const recorded = read;
    const torch::Tensor written = wave({5, 3}, 100, torch::kFloat32);
    model.module()["w1"].set_data(written.clone());
    const double loss = graphed.step({batch}).item<double>();
    EXPECT_EQ(read, recorded);
    // The step began with what was written.
    EXPECT_LT((model.module()["w1"] - written).abs().max().item<double>(), 0.02);
    EXPECT_GT(loss, 0.0);
    model.drain();
  });
}

TEST(GraphedStep, NeedsBucketsThatStay) {
  // The tried sizes cut the large model's parameters of 1.2 MB in different ways.
  for (const bool tries : {false, true}) {
    Scenario scenario{.num_ranks = 1};
    scenario.bucket_bytes = tries ? 0 : 1;
    on_ranks(1, [&](Communicator& communicator) {
      auto net = std::make_shared<Bag>();
      for (const char* const name : {"a", "b", "c"}) net->add(name, wave({150'000}, 0.0));
      DecentralizedDataParallel<Bag> model(net, communicator, scenario.options());
      GraphedStep graphed(model.core(), std::make_unique<FakeGraph>(),
                          [&](const std::vector<at::Tensor>& batch) {
                            torch::Tensor loss = batch[0].sum();
                            for (const torch::Tensor& p : net->parameters())
                              loss = loss + p.square().sum();
                            return loss;
                          });
      const auto run = [&] {
        for (int step = 0; step < 6; ++step) (void)graphed.step({torch::ones({1})});
      };
      if (tries) {
        EXPECT_THROW(run(), ConfigError);
        return;
      }
      run();
      EXPECT_TRUE(graphed.recorded());
      EXPECT_THROW(model.replan(1 << 30), std::logic_error);
      model.drain();
    });
  }
}

TEST(StepGraph, IsNotForProcessors) { EXPECT_THROW(make_step_graph({}), ConfigError); }

}  // namespace
}  // namespace gossamer
