// Tests models that cannot be trained and ranks that do not agree: every rank gets an error with
// the same words.

#include "test/core/torch/scenario.hpp"

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/torch/data_parallel.hpp"

namespace gossamer {
namespace {

using MakeModel = std::function<std::shared_ptr<Bag>(int rank)>;

/// The text of the ConfigError that all ranks get when they wrap their models.
std::string refusal(int num_ranks, const MakeModel& make_model) {
  const auto texts = config_errors(num_ranks, [&](Communicator& communicator) {
    Scenario scenario;
    scenario.num_ranks = num_ranks;
    const DecentralizedDataParallel<Bag> model(make_model(communicator.rank()), communicator,
                                               scenario.options());
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  return texts[0];
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

TEST(Refusal, OfAModelWithNothingToTrain) {
  for (const int num_ranks : {1, 2}) {
    expect_parts(refusal(num_ranks, [](int) { return std::make_shared<Bag>(); }),
                 {"nothing can be trained"});
    expect_parts(refusal(num_ranks,
                         [](int) {
                           auto model = std::make_shared<Bag>();
                           model->add("w", wave({3}, 0), false);
                           return model;
                         }),
                 {"nothing can be trained"});
  }
}

TEST(Refusal, OfTypesAndLayoutsNamesTheParameter) {
  const auto with = [](const torch::Tensor& tensor) {
    return [tensor](int) {
      auto model = make_mlp(0);
      model->add("layer_extra", tensor.clone());
      return model;
    };
  };
  expect_parts(refusal(2, with(wave({3}, 0, torch::kFloat16))),
               {"layer_extra", "Half", "float32, float64"});
  expect_parts(refusal(2, with(wave({3}, 0, torch::kComplexDouble))), {"layer_extra", "Complex"});
  expect_parts(refusal(2, with(wave({3, 3}, 0).to_sparse())), {"layer_extra", "sparse", "dense"});
  expect_parts(refusal(2,
                       [](int) {
                         auto model = make_mlp(0);
                         model->add("layer_extra", wave({4, 6}, 0).slice(1, 0, 6, 2));
                         return model;
                       }),
               {"layer_extra", "gaps"});
}

TEST(Refusal, OfDifferentModelsNamesTheFirstDifference) {
  const auto differing = [](const std::function<void(Bag&, int rank)>& add) {
    return [add](int rank) {
      auto model = make_mlp(0);
      add(*model, rank);
      return model;
    };
  };
  const auto last = [](int rank) { return rank == 2; };
  const std::string shape = refusal(
      3, differing([&](Bag& bag, int rank) { bag.add("w3", wave({last(rank) ? 4 : 5}, 0)); }));
  expect_parts(shape, {"rank 0", "rank 2", "w3 [5]", "w3 [4]"});
  const std::string name = refusal(
      3, differing([&](Bag& bag, int rank) { bag.add(last(rank) ? "v3" : "w3", wave({5}, 0)); }));
  expect_parts(name, {"rank 0", "rank 2", "w3", "v3"});
  const std::string trained =
      refusal(3, differing([&](Bag& bag, int rank) { bag.add("w3", wave({5}, 0), !last(rank)); }));
  expect_parts(trained, {"rank 0", "rank 2", "w3", "not trained"});
  const std::string type =
      refusal(3, differing([&](Bag& bag, int rank) {
                bag.add("w3", wave({5}, 0, last(rank) ? torch::kFloat32 : torch::kFloat64));
              }));
  expect_parts(type, {"rank 0", "rank 2", "w3", "Double", "Float"});
  const std::string strides =
      refusal(3, differing([&](Bag& bag, int rank) {
                bag.add("w3", last(rank) ? wave({5, 3}, 0).t() : wave({3, 5}, 0));
              }));
  expect_parts(strides, {"rank 0", "rank 2", "w3", "[5, 1]", "[1, 3]"});
  const std::string missing = refusal(3, differing([&](Bag& bag, int rank) {
                                        if (!last(rank)) bag.add("w3", wave({5}, 0));
                                      }));
  expect_parts(missing, {"rank 0", "rank 2", "w3"});
  const std::string buffer = refusal(3, differing([&](Bag& bag, int rank) {
                                       bag.add_buffer("count", torch::zeros({last(rank) ? 1 : 2}));
                                     }));
  expect_parts(buffer, {"rank 0", "rank 2", "count [2]", "count [1]"});
}

TEST(Refusal, OfASparseGradientNamesTheParameter) {
  for (const char* const algorithm : {"gossip", "allreduce", "local"}) {
    for (const int first_use : {0, 2}) {
      SCOPED_TRACE(concat(algorithm, ", first used in step ", first_use));
      const auto texts = config_errors(2, [&](Communicator& communicator) {
        const Scenario scenario{.algorithm = algorithm};
        auto bag = make_mlp(0);
        bag->add("table", wave({10, 3}, 0));
        DecentralizedDataParallel<Bag> model(bag, communicator, scenario.options());
        for (int step = 0; step <= first_use; ++step) {
          torch::Tensor loss = mlp_loss(*bag, communicator.rank(), step);
          if (step == first_use) {
            loss = loss + torch::embedding((*bag)["table"], torch::tensor({1, 2}), -1, false,
                                           /*sparse=*/true)
                              .sum();
          }
          loss.backward();
        }
      });
      for (const std::string& text : texts) expect_parts(text, {"table", "sparse", "dense"});
    }
  }
}

/// The text of the ConfigError for options, or for a null module.
std::string refusal_of_arguments(const std::function<void(DataParallelOptions&)>& change,
                                 bool has_module = true) {
  return config_errors(2, [&](Communicator& communicator) {
    DataParallelOptions options = Scenario().options();
    change(options);
    const DecentralizedDataParallel<Bag> model(has_module ? make_mlp(0) : nullptr, communicator,
                                               options);
  })[1];
}

TEST(Refusal, OfImpossibleArgumentsNamesWhatIsAllowed) {
  expect_parts(refusal_of_arguments([](auto&) {}, false), {"null", "allowed: a module"});
  expect_parts(refusal_of_arguments([](auto& options) { options.weight_decay = -0.1; }),
               {"weight_decay is -0.1", "allowed: 0 or more"});
  expect_parts(refusal_of_arguments([](auto& options) { options.weight_decay = NAN; }),
               {"weight_decay is", "allowed: 0 or more"});
  expect_parts(refusal_of_arguments([](auto& options) { options.num_threads = 0; }),
               {"num_threads is 0", "allowed: 1 or more"});
  expect_parts(refusal_of_arguments([](auto& options) { options.bucket_bytes = -1; }),
               {"bucket_bytes is -1", "allowed: 0 or more"});
  expect_parts(refusal_of_arguments([](auto& options) { options.average_buffers_every = -2; }),
               {"average_buffers_every is -2", "allowed: 0 or more"});
}

TEST(Refusal, OfOptionsThatAreMissingOrUnknown) {
  const auto refused = [](const std::function<void(DataParallelOptions&)>& change) {
    return refusal_of_arguments(change);
  };
  expect_parts(refused([](auto& options) { options.optimizer.reset(); }), {"optimizer"});
  expect_parts(refused([](auto& options) { options.schedule.reset(); }), {"schedule"});
  expect_parts(refused([](auto& options) { options.exchange.topology.reset(); }),
               {"gossip", "topology"});
  expect_parts(refused([](auto& options) { options.exchange.algorithm = "gosip"; }),
               {"gosip", "did you mean gossip?", "allreduce, local"});
}

}  // namespace
}  // namespace gossamer
