// Backward passes inside backward passes, as hand-written activation checkpointing has them.

#include "core/torch/backward_end.hpp"

#include "test/core/torch/scenario.hpp"

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/text.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/torch/data_parallel.hpp"

namespace gossamer {
namespace {

using Part = std::function<torch::Tensor(const torch::Tensor&)>;
using Context = torch::autograd::AutogradContext;

/// Keeps its input only, and computes its part of the model again when its backward comes.
struct CheckpointNode : torch::autograd::Function<CheckpointNode> {
  static torch::Tensor forward(Context* context, const torch::Tensor& input, const Part* part) {
    const torch::NoGradGuard no_grad;
    context->save_for_backward({input});
    context->saved_data["part"] = reinterpret_cast<std::int64_t>(part);
    return (*part)(input);
  }

  static torch::autograd::variable_list backward(Context* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* part = reinterpret_cast<const Part*>(context->saved_data["part"].toInt());
    const torch::AutoGradMode grad(true);
    const torch::Tensor input = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({(*part)(input)}, {gradients[0]});
    return {input.grad(), torch::Tensor()};
  }
};

torch::Tensor checkpoint(const torch::Tensor& input, const Part& part) {
  return CheckpointNode::apply(input, &part);
}

torch::Tensor input_of(int rank, int step) {
  return wave({4, 3}, 10.0 * rank + step).requires_grad_();
}

/// A model of three layers whose loss is computed in parts that a test may checkpoint.
struct Parts {
  explicit Parts(Bag& bag)
      : first([&bag](const torch::Tensor& x) {
          return torch::tanh(torch::linear(x, bag["w1"], bag["b1"]));
        }),
        second([&bag](const torch::Tensor& x) {
          return torch::tanh(torch::linear(x, bag["w2"], bag["b2"]));
        }),
        third([&bag](const torch::Tensor& x) { return torch::linear(x, bag["w3"], bag["b3"]); }) {}

  Part first;
  Part second;
  Part third;
};

Scenario three_layers(const std::function<torch::Tensor(const Parts&, const torch::Tensor&)>& run) {
  Scenario scenario{.num_ranks = 3, .optimizer = "adamw", .num_steps = 5};
  scenario.make_model = [](int rank) {
    auto model = std::make_shared<Bag>();
    model->add("w1", wave({5, 3}, rank));
    model->add("b1", wave({5}, rank + 1));
    model->add("w2", wave({5, 5}, rank + 2));
    model->add("b2", wave({5}, rank + 3));
    model->add("w3", wave({2, 5}, rank + 4));
    model->add("b3", wave({2}, rank + 5));
    model->add("unused", wave({2}, rank + 6));
    return model;
  };
  scenario.loss = [run](Bag& model, int rank, int step) {
    // Kept by the loss's graph, which refers to it.
    const auto parts = std::make_shared<Parts>(model);
    torch::Tensor loss = run(*parts, input_of(rank, step)).square().sum();
    loss.register_hook([parts](const torch::Tensor& grad) { return grad; });
    return loss;
  };
  return scenario;
}

/// Trained like the same model without checkpoints, and by hand, with every algorithm.
void expect_as_usual(const std::function<torch::Tensor(const Parts&, const torch::Tensor&)>& run) {
  const auto plain = [](const Parts& parts, const torch::Tensor& x) {
    return parts.third(parts.second(parts.first(x)));
  };
  for (Scenario actual : with_every_algorithm(three_layers(run))) {
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1} << 20U}) {
      actual.bucket_bytes = bytes;
      Scenario usual = actual;
      usual.loss = three_layers(plain).loss;
      SCOPED_TRACE(actual.text());
      const Trajectory trajectory = train_on_ranks(actual);
      expect_near(trajectory, train_on_ranks(usual), kTolerance);
      expect_near(trajectory, train_by_hand(actual), kTolerance);
    }
  }
}

TEST(BackwardInBackward, EndsTheStepWithTheOuterOne) {
  expect_as_usual([](const Parts& parts, const torch::Tensor& x) {
    return parts.third(checkpoint(parts.first(x), parts.second));
  });
}

TEST(BackwardInBackward, MayBeTheFirstAndTheLastOfAStep) {
  // No parameter gets its gradient in the outer pass.
  expect_as_usual([](const Parts& parts, const torch::Tensor& x) {
    return checkpoint(checkpoint(checkpoint(x, parts.first), parts.second), parts.third);
  });
}

TEST(BackwardInBackward, MayHaveOneInside) {
  expect_as_usual([](const Parts& parts, const torch::Tensor& x) {
    // Static: a part outlives the forward pass that uses it.
    thread_local Part inner;
    thread_local Part outer;
    inner = parts.second;
    outer = [first = parts.first, third = parts.third](const torch::Tensor& y) {
      return third(checkpoint(first(y), inner));
    };
    return checkpoint(x, outer);
  });
  expect_as_usual([](const Parts& parts, const torch::Tensor& x) {
    thread_local Part inner;
    thread_local Part middle;
    thread_local Part outer;
    inner = parts.third;
    middle = [second = parts.second](const torch::Tensor& y) {
      return checkpoint(second(y), inner);
    };
    outer = [](const torch::Tensor& y) { return checkpoint(y, middle); };
    return checkpoint(parts.first(x), outer);
  });
}

TEST(BackwardInBackward, MayHaveManyInside) {
  on_ranks(2, [](Communicator& communicator) {
    Scenario scenario = three_layers({});
    scenario.num_ranks = 2;
    DecentralizedDataParallel<Bag> model(scenario.make_model(0), communicator, scenario.options());
    const Parts layers(model.module());
    std::vector<Part> parts(50);
    parts[0] = layers.third;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      parts[i] = [&parts, i](const torch::Tensor& y) { return checkpoint(y, parts[i - 1]); };
    }
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor hidden = layers.second(layers.first(input_of(0, step)));
      checkpoint(hidden, parts.back()).square().sum().backward();
      EXPECT_EQ(model.engine().progress().num_steps, step + 1);
    }
    model.drain();
  });
}

TEST(BackwardInBackward, CountsAsOneStepAndOneMicroBatch) {
  on_ranks(2, [](Communicator& communicator) {
    Scenario scenario = three_layers([](const Parts& parts, const torch::Tensor& x) {
      return checkpoint(checkpoint(parts.first(x), parts.second), parts.third);
    });
    scenario.num_ranks = 2;
    DecentralizedDataParallel<Bag> model(scenario.make_model(0), communicator, scenario.options());
    scenario.num_micro_batches = 2;
    for (int step = 0; step < 3; ++step) {
      make_step(model, scenario, communicator.rank(), step);
      EXPECT_EQ(model.engine().progress().num_steps, step + 1);
      for (const torch::Tensor& p : model.parameters()) EXPECT_FALSE(p.grad().defined());
    }
    model.drain();
  });
}

Scenario shared_part() {
  Scenario scenario{.num_ranks = 2, .optimizer = "adamw", .num_steps = 5};
  scenario.make_model = [](int rank) {
    auto model = std::make_shared<Bag>();
    model->add("w", wave({3, 3}, rank));
    return model;
  };
  scenario.loss = [](Bag& model, int rank, int step) {
    thread_local Part part;
    part = [&model](const torch::Tensor& x) { return torch::tanh(torch::mm(x, model["w"])); };
    return checkpoint(checkpoint(input_of(rank, step), part), part).square().sum();
  };
  return scenario;
}

TEST(BackwardInBackward, ThatUsesAParameterTwiceSaysHow) {
  on_ranks(2, [](Communicator& communicator) {
    const Scenario scenario = shared_part();
    DecentralizedDataParallel<Bag> model(scenario.make_model(0), communicator, scenario.options());
    try {
      scenario.loss(model.module(), communicator.rank(), 0).backward();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::logic_error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("parameter w got a second gradient"), std::string::npos) << text;
      EXPECT_NE(text.find("finish_step()"), std::string::npos) << text;
    }
  });
}

TEST(BackwardInBackward, MayUseAParameterTwiceWhenTheStepIsFinishedByHand) {
  const Scenario scenario = shared_part();
  Trajectory trajectory(5, std::vector<Values>(2));
  on_ranks(2, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    DecentralizedDataParallel<Bag> model(scenario.make_model(rank), communicator,
                                         scenario.options());
    model.set_accumulate_grad(true);
    for (int step = 0; step < 5; ++step) {
      scenario.loss(model.module(), rank, step).backward();
      model.finish_step();
      trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)] =
          copy_values(model.module());
    }
  });
  expect_near(trajectory, train_by_hand(scenario), kTolerance);
}

TEST(BackwardInBackward, ThatFailsIsNotForgottenInSilence) {
  for (const int failing_part : {0, 1}) {
    on_ranks(1, [&](Communicator& communicator) {
      Scenario scenario = three_layers({});
      scenario.num_ranks = 1;
      DecentralizedDataParallel<Bag> model(scenario.make_model(0), communicator,
                                           scenario.options());
      const Parts parts(model.module());
      int calls = 0;
      // Throws when it is computed for the second time, which is in the backward pass.
      const Part failing = [&](const torch::Tensor& x) {
        if (++calls == 2) throw std::runtime_error("no memory left");
        return failing_part == 0 ? parts.first(x) : parts.second(x);
      };
      const torch::Tensor x = input_of(0, 0);
      torch::Tensor y = failing_part == 0 ? checkpoint(x, failing) : parts.first(x);
      y = failing_part == 1 ? checkpoint(y, failing) : parts.second(y);
      EXPECT_ANY_THROW(checkpoint(y, parts.third).square().sum().backward());
      EXPECT_THROW(parts.first(x).sum().backward(), std::logic_error);
    });
  }
}

TEST(AtEndOfBackward, CallsOnceAndReleasesTheAction) {
  for (const bool fails : {false, true}) {
    int calls = 0;
    std::weak_ptr<void> alive;
    torch::Tensor x = torch::ones({}, torch::requires_grad());
    Part middle = [](const torch::Tensor& y) { return y * 2; };
    torch::Tensor loss = checkpoint(x * 1, middle);
    loss.register_hook([&](const torch::Tensor&) {
      auto action = std::make_shared<std::function<void()>>([&calls] { ++calls; });
      alive = action;
      at_end_of_backward(std::move(action));
    });
    loss = loss * 1;
    if (fails) middle = [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error(""); };
    if (fails) {
      EXPECT_ANY_THROW(loss.backward());
    } else {
      loss.backward();
    }
    EXPECT_EQ(calls, fails ? 0 : 1);
    EXPECT_TRUE(alive.expired());
  }
}

}  // namespace
}  // namespace gossamer
