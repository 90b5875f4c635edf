// Parameters that somebody else writes between steps.

#include "test/core/torch/scenario.hpp"

#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/serialize.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/bucket/model_average.hpp"
#include "core/torch/data_parallel.hpp"

namespace gossamer {
namespace {

using Wrapper = DecentralizedDataParallel<Bag>;

void load(const std::shared_ptr<torch::nn::Module>& into, const std::shared_ptr<Bag>& from) {
  // One thread at a time, so that the thread sanitizer sees the order in which LibTorch's archives
  // use what they share.
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  std::stringstream file;
  torch::save(from, file);
  torch::load(into, file);
}

/// Makes a model what another one is.
struct Way {
  const char* name;
  std::function<void(Bag& to, const std::shared_ptr<Bag>& from)> write;
};

const Way kLoad = {"torch::load", [](Bag& to, const std::shared_ptr<Bag>& from) {
                     load(to.shared_from_this(), from);
                   }};
const Way kVector = {"vector_to_parameters", [](Bag& to, const std::shared_ptr<Bag>& from) {
                       const torch::NoGradGuard no_grad;
                       torch::nn::utils::vector_to_parameters(
                           torch::nn::utils::parameters_to_vector(from->parameters()),
                           to.parameters());
                     }};
const Way kCopy = {"copy_", [](Bag& to, const std::shared_ptr<Bag>& from) {
                     const torch::NoGradGuard no_grad;
                     for (const auto& entry : from->named_parameters()) {
                       to[entry.key()].copy_(entry.value());
                     }
                   }};
const Way kData = {"data()", [](Bag& to, const std::shared_ptr<Bag>& from) {
                     for (const auto& entry : from->named_parameters()) {
                       to[entry.key()].data().copy_(entry.value().data());
                     }
                   }};

torch::Tensor flat(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& tensor : tensors) parts.push_back(tensor.detach().flatten());
  return torch::cat(parts);
}

torch::Tensor gradient(Bag& model, int rank, int step) {
  return flat(torch::autograd::grad({mlp_loss(model, rank, step)}, model.parameters()));
}

/// All ranks mix with all, so that the mixed model is the mean.
Scenario everybody() { return {.num_ranks = 3, .topology = "complete"}; }

/// Two steps after values were written: the first mixes nothing, the second mixes those of the
/// first.
void expect_training_from(Wrapper& model, Communicator& communicator, const Bag& written) {
  const Scenario scenario = everybody();
  const int rank = communicator.rank();
  const torch::Tensor start = flat(model.parameters());
  expect_near(start, flat(written.parameters()));
  torch::Tensor step = scenario.lr * gradient(model.module(), rank, 50);
  make_step(model, scenario, rank, 50);
  const torch::Tensor after = flat(model.parameters());
  expect_near(after, start - step);
  const double* data = after.data_ptr<double>();
  const torch::Tensor mean =
      torch::tensor(sum_over_ranks(communicator, {data, data + after.numel()}), torch::kFloat64) /
      communicator.size();
  step = scenario.lr * gradient(model.module(), rank, 51);
  make_step(model, scenario, rank, 51);
  expect_near(flat(model.parameters()), mean - step);
}

/// Rank threads whose models are `steps` steps on.
void on_models(int steps, const std::function<void(Wrapper&, Communicator&)>& body) {
  SCOPED_TRACE(concat("after step ", steps));
  const Scenario scenario = everybody();
  on_ranks(scenario.num_ranks, [&](Communicator& communicator) {
    Wrapper model(make_mlp(0), communicator, scenario.options());
    for (int step = 0; step < steps; ++step) make_step(model, scenario, communicator.rank(), step);
    body(model, communicator);
    model.drain();
  });
}

TEST(WriteScope, LetsTheModelBeWrittenInAnyWay) {
  for (const Way& way : {kLoad, kVector, kCopy, kData}) {
    for (const int steps : {0, 1, 4}) {
      SCOPED_TRACE(way.name);
      on_models(steps, [&](Wrapper& model, Communicator& communicator) {
        const auto written = make_mlp(100 + communicator.rank());
        {
          const auto scope = model.write_parameters();
          way.write(model.module(), written);
        }
        expect_training_from(model, communicator, *written);
      });
    }
  }
}

TEST(WriteScope, KeepsWhatIsAveragedNext) {
  for (const Way& way : {kLoad, kCopy}) {
    for (const int steps : {0, 2}) {
      on_models(steps, [&](Wrapper& model, Communicator&) {
        const auto written = make_mlp(100);
        {
          const auto scope = model.write_parameters();
          way.write(model.module(), written);
        }
        const AverageScope mean = model.global_average();
        EXPECT_NEAR(mean.consensus_distance(), 0.0, 1e-13) << way.name;
        expect_near(flat(model.parameters()), flat(written->parameters()));
      });
    }
  }
}

TEST(WriteScope, RefusesToTrainAndToNest) {
  for (const int steps : {0, 2}) {
    on_models(steps, [&](Wrapper& model, Communicator& communicator) {
      {
        const WriteScope scope = model.write_parameters();
        EXPECT_THROW(mlp_loss(model.module(), communicator.rank(), 7).backward(), std::logic_error);
        EXPECT_THROW(model.finish_step(), std::logic_error);
        EXPECT_THROW(static_cast<void>(model.global_average()), std::logic_error);
        EXPECT_THROW(static_cast<void>(model.write_parameters()), std::logic_error);
        for (const torch::Tensor& p : model.parameters()) EXPECT_FALSE(p.grad().defined());
      }
      {
        const AverageScope scope = model.global_average();
        EXPECT_THROW(static_cast<void>(model.write_parameters()), std::logic_error);
      }
      EXPECT_EQ(model.engine().progress().num_steps, steps);
      make_step(model, everybody(), communicator.rank(), 7);
      EXPECT_EQ(model.engine().progress().num_steps, steps + 1);
    });
  }
}

TEST(WrittenParameters, OfAMovedModelAreTrainedFromAndNamedOnce) {
  for (const Way& way : {kLoad, kVector}) {
    SCOPED_TRACE(way.name);
    on_ranks(3, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      const Scenario scenario = everybody();
      DataParallelOptions options = scenario.options();
      if (rank == 0) options.logger = Logger(LogLevel::kWarning, "rank 0");
      Wrapper model(make_mlp(0), communicator, options);
      if (rank == 0) testing::internal::CaptureStderr();
      for (int repeat = 0; repeat < 2; ++repeat) {
        for (int step = 0; step < 3; ++step) make_step(model, scenario, rank, step);
        // In flight: the exchange of the last step.
        const auto written = make_mlp(100 + rank);
        way.write(model.module(), written);
        expect_training_from(model, communicator, *written);
      }
      communicator.barrier();
      if (rank != 0) return;
      const std::string said = testing::internal::GetCapturedStderr();
      const std::size_t first = said.find("outside of write_parameters(): w1, b1, w2, b2");
      EXPECT_NE(first, std::string::npos) << said;
      EXPECT_EQ(said.find("outside of write_parameters()", first + 1), std::string::npos) << said;
    });
  }
}

TEST(WrittenParameters, AreRefusedWhileTheirExchangeMayBeInFlight) {
  using Use = std::function<void(Wrapper&, int rank)>;
  const std::vector<Use> uses = {
      [](Wrapper& model, int rank) { mlp_loss(model.module(), rank, 3).backward(); },
      [](Wrapper& model, int) { model.finish_step(); }, [](Wrapper& model, int) { model.drain(); },
      [](Wrapper& model, int) { static_cast<void>(model.global_average()); },
      [](Wrapper& model, int) { static_cast<void>(model.write_parameters()); }};
  for (const Use& use : uses) {
    const Scenario scenario = everybody();
    on_ranks(3, [&](Communicator& communicator) {
      Wrapper model(make_mlp(0), communicator, scenario.options());
      for (int step = 0; step < 3; ++step) {
        make_step(model, scenario, communicator.rank(), step);
      }
      {
        const torch::NoGradGuard no_grad;
        model.module()["w2"].clamp_(-0.1, 0.1);
      }
      try {
        use(model, communicator.rank());
        ADD_FAILURE() << "nothing was thrown";
      } catch (const std::logic_error& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("w2"), std::string::npos) << text;
        EXPECT_NE(text.find("write_parameters()"), std::string::npos) << text;
      }
    });
  }
}

TEST(WrittenParameters, OfOneRankAloneAreMixedFromThenOn) {
  on_models(3, [&](Wrapper& model, Communicator& communicator) {
    const int rank = communicator.rank();
    const auto written = make_mlp(100);
    if (rank == 1) kLoad.write(model.module(), written);
    const torch::Tensor step = everybody().lr * gradient(model.module(), rank, 50);
    make_step(model, everybody(), rank, 50);
    if (rank == 1) expect_near(flat(model.parameters()), flat(written->parameters()) - step);
    const AverageScope mean = model.global_average();
    EXPECT_GT(mean.consensus_distance(), 0.1);
  });
}

TEST(WrittenParameters, InsideAnAverageGoWithIt) {
  for (const Way& way : {kLoad, kVector, kCopy, kData}) {
    for (const int steps : {0, 3}) {
      SCOPED_TRACE(way.name);
      on_models(steps, [&](Wrapper& model, Communicator& communicator) {
        const Values own = copy_values(model.module());
        {
          const AverageScope mean = model.global_average();
          way.write(model.module(), make_mlp(100));
        }
        expect_equal(copy_values(model.module()), own);
        make_step(model, everybody(), communicator.rank(), 50);
        EXPECT_EQ(model.engine().progress().num_steps, steps + 1);
      });
    }
  }
}

TEST(WrittenParameters, InsideAnAverageThatIsKeptAreTrainedFrom) {
  for (const Way& way : {kLoad, kCopy}) {
    on_models(3, [&](Wrapper& model, Communicator& communicator) {
      const auto written = make_mlp(100 + communicator.rank());
      {
        AverageScope mean = model.global_average();
        way.write(model.module(), written);
        mean.keep();
      }
      expect_training_from(model, communicator, *written);
    });
  }
}

TEST(WrittenParameters, KeepTheStridesOfTheModel) {
  Scenario scenario{.num_ranks = 2, .topology = "complete"};
  for (const int steps : {0, 2}) {
    on_ranks(2, [&](Communicator& communicator) {
      auto bag = std::make_shared<Bag>();
      bag->add("t", wave({4, 6}, 0).t());
      Wrapper model(bag, communicator, scenario.options());
      const auto loss = [&] { return ((*bag)["t"] * wave({6, 4}, 3)).sum(); };
      for (int step = 0; step < steps; ++step) loss().backward();
      (*bag)["t"].set_data(wave({6, 4}, 50));
      loss().backward();
      expect_near((*bag)["t"].detach(), wave({6, 4}, 50) - scenario.lr * wave({6, 4}, 3));
      EXPECT_EQ((*bag)["t"].strides(), (at::IntArrayRef{1, 6}));
      model.drain();
    });
  }
}

TEST(WrittenParameters, OfAnotherTypeOrShapeAreRefused) {
  struct Case {
    std::function<void(Bag&)> change;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {[](Bag& bag) { bag.to(torch::kFloat32); },
       {"w1", "was Double [5, 3] on cpu", "is Float [5, 3] on cpu", "wrap it again"}},
      {[](Bag& bag) { bag["b2"].set_data(wave({7}, 0)); },
       {"b2", "was Double [2] on cpu", "is Double [7] on cpu"}},
      {[](Bag& bag) {
         bag["b1"].set_data(wave({1, 5}, 0));
       },
       {"b1", "was Double [5] on cpu", "is Double [1, 5] on cpu"}}};
  for (const Case& c : cases) {
    for (const int steps : {0, 2}) {
      for (const bool in_scope : {false, true}) {
        SCOPED_TRACE(concat(c.parts[0], " after step ", steps, in_scope ? ", in a scope" : ""));
        const auto texts = config_errors(2, [&](Communicator& communicator) {
          const Scenario scenario{.num_ranks = 2};
          Wrapper model(make_mlp(0), communicator, scenario.options());
          for (int step = 0; step < steps; ++step) {
            make_step(model, scenario, communicator.rank(), step);
          }
          if (in_scope) {
            const auto scope = model.write_parameters();
            c.change(model.module());
          } else {
            c.change(model.module());
          }
          // Where shapes broadcast, a forward pass has nothing to complain about.
          torch::Tensor loss = torch::zeros({});
          for (const torch::Tensor& p : model.parameters()) loss = loss + p.square().sum();
          loss.backward();
        });
        for (const std::string& text : texts) {
          for (const std::string& part : c.parts) {
            EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace gossamer
