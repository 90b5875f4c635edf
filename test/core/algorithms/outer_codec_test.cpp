// The averages of `outer` under codecs: what is sent, and what is left out.

#include "test/core/expected.hpp"
#include "test/core/step/saved_state.hpp"
#include "test/support/sanitized.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/algorithms/algorithm.hpp"
#include "optim/codec.hpp"
#include "topology/rank_round.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

// On a device, the host encodes, decodes and mixes models, with the same arithmetic.
void expect_encoded_averages_on_the_host(int one_of) {
  int number = 0;
  for (const char* options :
       {"every: 3, kind: diloco", "every: 1, kind: diloco, lr: 1, momentum: 0",
        "every: 4, kind: slowmo, late: 3", "every: 4, kind: diloco, late: 2, streaming: true",
        "every: 3, kind: noloco", "every: 2, kind: gasloc", "every: 3, kind: noloco, late: 3",
        "every: 4, kind: noloco, streaming: true",
        "every: 2, kind: noloco, share_moments: 2, share_momentum: 2"}) {
    for (const char* const codec : {"bf16", "int8", "int4", "topk"}) {
      Problem problem;
      problem.num_ranks = 4;
      problem.algorithm = "outer";
      problem.algorithm_options = options;
      problem.codec = codec;
      problem.dtype = DType::kFloat32;
      problem.sizes = {300, 7, 2000};
      problem.bucket_bytes = 1;
      problem.num_steps = 24;
      problem.same_start = true;
      if (contains(options, "share")) problem.rule = {.type = "adamw", .eps = 1e-3};
      const AlgorithmChoice choice("outer", Options::parse(options));
      if (!choice.takes(*find_codec(codec))) continue;
      // Nodes of two ranks encode between operations.
      for (const char* const topology : {"one-peer-exp", "hierarchical"}) {
        if (!choice.needs_topology() && topology != std::string_view("one-peer-exp")) continue;
        if (++number % one_of != 0) continue;
        problem.node_size = topology == std::string_view("hierarchical") ? 2 : 4;
        problem.topology = make_topology(topology, {.size = 4, .node_size = problem.node_size});
        problem.where = Where::kHost;
        const Trajectory expected = run_pipeline(problem);
        for (const Where where : {Where::kDevice, Where::kDirect, Where::kNccl}) {
          SCOPED_TRACE(concat(options, ", ", codec, ", ", topology, ", ", name_of(where)));
          problem.where = where;
          EXPECT_EQ(run_pipeline(problem), expected);
          if (kSanitized) break;
        }
      }
    }
  }
}

// Every kind and every codec has its turn.
TEST(Outer, TakesEncodedAveragesOfADeviceOnTheHost) { expect_encoded_averages_on_the_host(3); }
TEST(WideOuter, TakesEncodedAveragesOfADeviceOnTheHost) { expect_encoded_averages_on_the_host(1); }

/// The blocks of float64 of a rank by name, as they would be saved.
std::map<std::string, std::vector<double>> state_of(ToyModel& model) {
  SavedState state;
  Saver saver(state);
  model.pipeline().visit(saver);
  std::map<std::string, std::vector<double>> blocks;
  for (const auto& [name, bytes] : state.blocks) {
    std::vector<double>& values = blocks[name];
    values.resize(bytes.size() / sizeof(double));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return blocks;
}

// The anchors of all ranks are equal. So the mean of the models and errors after an average is the
// mean of the models and errors before.
TEST(Outer, LosesNothingUnderACodec) {
  for (const char* codec : {"bf16", "int8", "int4", "topk"}) {
    for (const char* kind : {"slowmo", "diloco", "noloco"}) {
      constexpr int kRanks = 3;
      std::vector<std::map<std::string, std::vector<double>>> before(kRanks);
      auto after = before;
      auto models = std::vector<std::vector<double>>(kRanks);
      run_ranks(kRanks, [&](Communicator& communicator, const World& world) {
        Problem problem;
        problem.num_ranks = kRanks;
        problem.same_start = true;
        problem.algorithm = "outer";
        // The average becomes the model.
        problem.algorithm_options =
            concat("{every: 3, rounds: all, lr: 1, momentum: 0, kind: ", kind, "}");
        problem.codec = codec;
        problem.sizes = {7, 300, 1, 2000};
        problem.bucket_bytes = 4096;
        // Steps in which averages arrive update nothing.
        problem.present = [](int, int step, std::int64_t) { return step % 3 != 0; };
        ToyModel model = model_of(problem, communicator);
        const auto rank = static_cast<std::size_t>(world.rank);
        for (int step = 0; step < 12; ++step) train_step(problem, model, world.rank, step);
        before[rank] = state_of(model);
        train_step(problem, model, world.rank, 12);
        after[rank] = state_of(model);
        models[rank] = model.values();
      });
      double largest = 0.0;
      for (const auto& [name, values] : before[0]) {
        if (name.find('/') != std::string::npos) continue;
        for (std::size_t e = 0; e < values.size(); ++e) {
          double sum = 0.0;
          for (std::size_t rank = 0; rank < kRanks; ++rank) {
            const std::string error = name + "/outer_error";
            sum += after[rank].at(name)[e] + after[rank].at(error)[e];
            sum -= before[rank].at(name)[e] + before[rank].at(error)[e];
            largest = std::max(largest, std::abs(after[rank].at(error)[e]));
          }
          EXPECT_NEAR(sum, 0.0, 1e-12) << codec << ", " << kind << ", " << name << ", " << e;
        }
      }
      EXPECT_GT(largest, 1e-4) << "nothing was left out";
      for (const auto& model : models) EXPECT_EQ(model, models.front()) << codec << ", " << kind;
    }
  }
}

// Other code writes the parameters of some ranks in the middle of a cycle, so the ranks have
// different anchors. Two averages later all models are equal again, and stay so.
TEST(Outer, FindsACommonAnchorAfterParametersWereWritten) {
  for (const char* codec : {"fp32", "int8", "topk"}) {
    for (const char* options : {"every: 4, kind: diloco, lr: 1, momentum: 0",
                                "every: 4, kind: noloco, rounds: all, late: 3, blend: 0",
                                "every: 4, kind: slowmo, streaming: true", "every: 1, kind: diloco",
                                "every: 3, kind: diloco, late: 3, blend: 0"}) {
      for (const auto& [all_write, where] :
           {std::pair{false, Where::kHost}, {true, Where::kHost}, {false, Where::kDevice}}) {
        // Plain averages bring anchors together at once where the mean becomes the anchor.
        if (codec == std::string("fp32") && !contains(options, "momentum: 0")) continue;
        SCOPED_TRACE(concat(codec, ", ", options, all_write ? ", all write, " : ", one writes, ",
                            name_of(where)));
        FakeNcclHub hub;
        constexpr int kRanks = 3;
        std::vector<std::vector<std::vector<double>>> models(kRanks);
        run_ranks(kRanks, [&](Communicator& communicator, const World& world) {
          Problem problem;
          problem.num_ranks = kRanks;
          problem.same_start = true;
          problem.algorithm = "outer";
          problem.algorithm_options = options;
          problem.codec = codec;
          problem.sizes = {300, 7};
          problem.bucket_bytes = 1;
          // From step 12 on only averages move the models.
          problem.present = [](int, int step, std::int64_t) { return step < 12; };
          TestDevice device(where, communicator, hub);
          ToyModel model = model_on(problem, device);
          for (int step = 0; step < 40; ++step) {
            if (step == 10 && (all_write || world.rank == 1)) {
              model.pipeline().drain();
              for (const ParameterMemory& memory : model.pipeline().memory()) {
                for (double& x : memory.parameters.block().as<double>()) {
                  x = std::clamp(x, -0.1, 0.1);
                }
              }
              model.pipeline().forget_arrived();
            }
            // Other buckets have other turns.
            if (step == 13 && contains(options, "streaming")) model.replan(1 << 20);
            train_step(problem, model, world.rank, step);
            models[static_cast<std::size_t>(world.rank)].push_back(model.values());
          }
          model.pipeline().drain();
        });
        for (const std::size_t step : {std::size_t{31}, std::size_t{39}}) {
          for (const auto& model : models) {
            for (std::size_t e = 0; e < model[step].size(); ++e) {
              EXPECT_NEAR(model[step][e], models.front()[step][e], 1e-13) << step << ", " << e;
            }
          }
        }
      }
    }
  }
}

TEST(Outer, SendsMovesInAsManyBytesAsTheCodecSays) {
  for (const char* codec : {"bf16", "int8", "int4", "topk"}) {
    for (const int n : {1, 2, 3, 4}) {
      run_ranks(n, [&](Communicator& communicator, const World& world) {
        Problem problem;
        problem.num_ranks = n;
        problem.algorithm = "outer";
        problem.algorithm_options = "{every: 5, kind: diloco}";
        problem.codec = codec;
        problem.sizes = {20'000};
        ToyModel model = model_of(problem, communicator);
        for (int step = 0; step < 20; ++step) train_step(problem, model, world.rank, step);
        model.pipeline().drain();
        const Codec& used = *find_codec(codec);
        // What leaves out elements is sent whole, and once.
        const std::int64_t numel = used.is_sparse() ? 20'000 : (20'000 + n - 1) / n;
        const int num_messages = (used.is_sparse() ? 1 : 2) * (n - 1);
        // A message ends with a flag.
        const auto bytes =
            static_cast<double>(used.summand_bytes(numel) + size_of(DType::kFloat64));
        EXPECT_EQ(model.pipeline().metrics().bytes_sent, 4.0 * num_messages * bytes)
            << codec << ", " << n;
      });
    }
  }
}

TEST(Outer, PairsSendEncodedModelsOnceTheyHaveAGrid) {
  for (const char* codec : {"bf16", "int8", "int4"}) {
    run_ranks(4, [&](Communicator& communicator, const World& world) {
      Problem problem;
      problem.num_ranks = 4;
      problem.topology = make_topology("one-peer-exp", {.size = 4, .node_size = 4});
      problem.algorithm = "outer";
      problem.algorithm_options = "{every: 5, kind: noloco}";
      problem.codec = codec;
      problem.shares_memory = false;
      problem.sizes = {20'000};
      ToyModel model = model_of(problem, communicator);
      for (int step = 0; step < 50; ++step) train_step(problem, model, world.rank, step);
      model.pipeline().drain();
      const double coded = static_cast<double>(find_codec(codec)->mixing()->encoded_bytes(20'000));
      // Two windows of two averages have no grid. The votes are 102 elements in every window.
      const bool has_grid = find_codec(codec)->needs_grid();
      const int num_plain = has_grid ? 4 : 0;
      const double votes = has_grid ? 4 * exchange_bytes(102 * 8, 4) : 0.0;
      EXPECT_EQ(model.pipeline().metrics().bytes_sent,
                num_plain * 20'000 * 8.0 + (10 - num_plain) * coded + votes)
          << codec;
    });
  }
}

}  // namespace
}  // namespace gossamer
