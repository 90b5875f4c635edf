// Tests node_gossip against gossip, allreduce and the recursion.

#include "test/core/expected.hpp"
#include "test/core/problem.hpp"
#include "test/support/sanitized.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/host_stream.hpp"
#include "base/text.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

// The forms of the algorithm.
constexpr const char* kReplicated = "shard: none";
constexpr const char* kSharded = "shard: optimizer";
constexpr std::array kForms = {kReplicated, kSharded};

Problem nodes_of(int num_nodes, int node_size, const std::string& leaders,
                 const char* form = kReplicated) {
  Problem problem{.num_ranks = num_nodes * node_size,
                  .node_size = node_size,
                  .algorithm = "node_gossip",
                  .algorithm_options = form,
                  .same_start = true};
  problem.topology =
      read_topology(Options::parse(concat("{name: hierarchical, leaders: ", leaders, "}")),
                    {.size = problem.num_ranks, .node_size = node_size});
  return problem;
}

void expect_equal_nodes(const Problem& problem, const Trajectory& trajectory) {
  for (const auto& step : trajectory) {
    for (std::size_t rank = 0; rank < step.size(); ++rank) {
      const std::size_t size = static_cast<std::size_t>(problem.node_size);
      EXPECT_EQ(step[rank], step[rank / size * size]) << rank;
    }
  }
}

TEST(NodeGossip, FollowsTheRecursionWhateverTheSizesOfShards) {
  // Buckets of one parameter have two cache lines or none: shards end within parameters, and in
  // nodes of three some are empty.
  for (const auto& [leaders, bucket_bytes] :
       {std::pair{"ring", 256}, {"complete", 1}, {"static-exp", 1}}) {
    for (const auto& [node_size, form] :
         {std::pair{2, kReplicated}, {2, kSharded}, {3, kReplicated}, {3, kSharded}}) {
      SCOPED_TRACE(
          concat(leaders, ", nodes of ", node_size, ", buckets of ", bucket_bytes, ", ", form));
      Problem problem = nodes_of(3, node_size, leaders, form);
      problem.bucket_bytes = bucket_bytes;
      problem.rule = {.type = "accum_adam", .eps = 1e-3, .accum_iter = 2};
      problem.lr = 0.02;
      problem.gradients = {.clip_mode = ClipMode::kGlobal, .clip_norm = 0.6};
      problem.present = one_is_missing_of(4);
      const Trajectory expected = expected_trajectory(problem);
      const Trajectory found = run_pipeline(problem);
      EXPECT_LE(largest_difference(found, expected), 1e-12);
      expect_equal_nodes(problem, found);
      problem.dtype = DType::kFloat32;
      EXPECT_LE(largest_difference(run_pipeline(problem), expected), 1e-5);
    }
  }
}

TEST(NodeGossip, HasTheSameBitsWithShardedStates) {
  struct Rule {
    reference::Rule rule;
    const char* leaders;
    int node_size;
  };
  const std::vector<Rule> rules = {
      {{.type = "sgd", .momentum = 0.9}, "ring", 2},
      {{.type = "adamw", .eps = 1e-3}, "complete", 3},
      {{.type = "accum_adamw", .eps = 1e-3, .accum_iter = 2}, "static-exp", 3},
      {{.type = "qg_sgd", .momentum = 0.9}, "ring", 3},
      {{.type = "extra", .accum_iter = 2, .inner = "accum_adamw"}, "complete", 2}};
  for (const Rule& rule : rules) {
    for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
      if (kSanitized && dtype == DType::kFloat64) continue;
      SCOPED_TRACE(concat(rule.rule.type, ", nodes of ", rule.node_size, ", ", name_of(dtype)));
      Problem problem = nodes_of(3, rule.node_size, rule.leaders);
      problem.rule = rule.rule;
      problem.lr = 0.02;
      problem.dtype = dtype;
      problem.present = one_is_missing_of(4);
      const Trajectory expected = run_pipeline(problem);
      problem.algorithm_options = kSharded;
      EXPECT_EQ(run_pipeline(problem), expected);
      problem.bucket_bytes = 1;
      problem.gradients.nonfinite = NonFinite::kSkip;
      problem.breaks = [](int rank, int step) { return step == 3 && rank == 1; };
      const Trajectory skipping = run_pipeline(problem);
      problem.algorithm_options = kReplicated;
      EXPECT_EQ(skipping, run_pipeline(problem));
      EXPECT_NE(skipping, expected);
    }
  }
}

TEST(NodeGossip, ClipsAlikeWithShardedStates) {
  // Norms of shards are added in another order than those of whole gradients.
  for (const ClipMode mode : {ClipMode::kPerBucket, ClipMode::kGlobal, ClipMode::kDelayedGlobal}) {
    for (const int node_size : {2, 3}) {
      SCOPED_TRACE(concat("mode ", static_cast<int>(mode), ", nodes of ", node_size));
      Problem problem = nodes_of(2, node_size, "complete");
      problem.dtype = DType::kFloat32;
      const Trajectory unclipped = run_pipeline(problem);
      problem.gradients = {.clip_mode = mode, .clip_norm = 0.3};
      const Trajectory expected = run_pipeline(problem);
      EXPECT_GT(largest_difference(expected, unclipped), 0.01);
      problem.algorithm_options = kSharded;
      const Trajectory found = run_pipeline(problem);
      EXPECT_LE(largest_difference(found, expected), 1e-6);
      expect_equal_nodes(problem, found);
    }
  }
}

/// Gossip of `nodes` alone: each rank computes the gradients of a whole node, one after the other.
Trajectory micro_batches(const Problem& nodes, const std::string& leaders) {
  const int node_size = nodes.node_size;
  Problem problem = nodes;
  problem.algorithm = "gossip";
  problem.algorithm_options = "";
  problem.num_ranks = nodes.num_ranks / node_size;
  problem.node_size = 1;
  problem.topology = make_topology(leaders, {.size = problem.num_ranks});
  problem.gradient_scale = 1.0 / node_size;
  Trajectory trajectory = empty_trajectory(problem);
  run_ranks(problem.num_ranks, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    model.pipeline().set_gradient_scale(problem.gradient_scale);
    for (int step = 0; step < problem.num_steps; ++step) {
      const std::vector<double> x = model.values();
      std::vector<double> sum(x.size());
      for (int place = 0; place < node_size; ++place) {
        const auto gradient = gradient_at(x, world.rank * node_size + place, step);
        for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += gradient[e];
      }
      for (std::int64_t i = 0; i < model.num_parameters(); ++i) model.offer(i, sum);
      model.pipeline().finish_step();
      trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(world.rank)] =
          model.values();
    }
    model.pipeline().drain();
  });
  return trajectory;
}

TEST(NodeGossip, IsGossipOfMicroBatches) {
  for (const auto& [leaders, form] :
       {std::pair{"ring", kReplicated}, {"static-exp", kReplicated}, {"ring", kSharded}}) {
    for (const int node_size : {2, 3}) {
      SCOPED_TRACE(concat(leaders, ", nodes of ", node_size, ", ", form));
      Problem problem = nodes_of(3, node_size, leaders, form);
      problem.dtype = DType::kFloat32;
      problem.gradients = {.clip_mode = ClipMode::kGlobal, .clip_norm = 0.6};
      const Trajectory found = run_pipeline(problem);
      const Trajectory expected = micro_batches(problem, leaders);
      for (std::size_t step = 0; step < found.size(); ++step) {
        for (std::size_t rank = 0; rank < found[step].size(); ++rank) {
          const auto& wanted = expected[step][rank / static_cast<std::size_t>(node_size)];
          for (std::size_t e = 0; e < wanted.size(); ++e) {
            ASSERT_NEAR(found[step][rank][e], wanted[e], 1e-6) << step << ", rank " << rank;
          }
        }
      }
    }
  }
}

struct Shards {
  int node_size;
  /// Cache lines of two buckets, by place in the node.
  std::vector<int> lines;
};

/// Trains, and compares the bytes that each rank has sent in a number of steps.
/// `expected(place, num_nodes, shard)`: `shard` is the bytes of the rank's shards.
template <class Expected>
void expect_bytes(const char* form, int num_steps, const Expected& expected) {
  for (const Shards& shards : {Shards{2, {4 + 7, 4 + 7}}, Shards{3, {2 + 4, 3 + 5, 3 + 5}}}) {
    for (const int num_nodes : {1, 2, 3}) {
      const int size = shards.node_size;
      SCOPED_TRACE(concat(num_nodes, " nodes of ", size, ", ", form));
      Problem problem = nodes_of(num_nodes, size, "complete", form);
      problem.sizes = {33, 1, 40, 64};
      problem.bucket_bytes = 512;
      run_ranks(problem.num_ranks, [&](Communicator& communicator, const World& world) {
        ToyModel model = model_of(problem, communicator);
        for (int step = 0; step < num_steps; ++step) train_step(problem, model, world.rank, step);
        model.pipeline().drain();
        const double shard = 64.0 * shards.lines[static_cast<std::size_t>(world.rank % size)];
        EXPECT_DOUBLE_EQ(model.pipeline().metrics().bytes_sent, expected(size, num_nodes, shard));
      });
    }
  }
}

// Blocks of 8 and of 14 cache lines, and two flags behind the gradients of each.
constexpr double kAll = 64.0 * (8 + 14);
constexpr double kFlags = 8.0 * (2 + 2);
// Between nodes a pair sends its shard; a group of three sums shards.
constexpr std::array kBetween = {0.0, 1.0, 4.0 / 3.0};

TEST(NodeGossip, SendsOneShardBetweenNodes) {
  constexpr int kNumSteps = 5;
  expect_bytes(kReplicated, kNumSteps, [](int size, int num_nodes, double shard) {
    const double sums = kNumSteps * 2.0 * (size - 1) / size * (kAll + kFlags);
    const double between = kBetween[static_cast<std::size_t>(num_nodes - 1)];
    // The first step gathers nothing, because nothing has been mixed.
    const double gathers = num_nodes > 1 ? (kNumSteps - 1) * (size - 1) * shard : 0.0;
    return sums + kNumSteps * between * shard + gathers;
  });
}

TEST(NodeGossip, SendsEachShardOnceToAddUpAndOnceToAllWithShardedStates) {
  constexpr int kNumSteps = 5;
  expect_bytes(kSharded, kNumSteps, [](int size, int num_nodes, double shard) {
    const double flags = 2.0 * (size - 1) / size * kFlags;
    const double between = kBetween[static_cast<std::size_t>(num_nodes - 1)];
    return kNumSteps * (kAll - shard + flags + between * shard + (size - 1) * shard);
  });
}

/// Counts the bytes that are in use.
class CountingStream : public InlineStream {
 public:
  Buffer allocate(std::int64_t numel, DType dtype) override {
    const Buffer buffer = InlineStream::allocate(numel, dtype);
    pieces_.emplace_back(buffer.owner(), buffer.block().bytes());
    return buffer;
  }
  [[nodiscard]] double bytes() const {
    std::int64_t sum = 0;
    for (const auto& [owner, bytes] : pieces_) sum += owner.expired() ? 0 : bytes;
    return static_cast<double>(sum);
  }

 private:
  std::vector<std::pair<std::weak_ptr<void>, std::int64_t>> pieces_;
};

/// Bytes that a rank has for each parameter in pairs of nodes, beside the gradients.
double bytes_per_parameter(int node_size, const char* form) {
  Problem problem = nodes_of(2, node_size, "one-peer-exp", form);
  problem.sizes = {30'000, 1'001, 20'000};
  problem.bucket_bytes = 100'000;
  problem.dtype = DType::kFloat32;
  problem.rule = {.type = "accum_adamw", .accum_iter = 2};
  double found = 0.0;
  run_ranks(problem.num_ranks, [&](Communicator& communicator, const World& world) {
    CountingStream stream;
    Pipeline::Config config = config_of(problem);
    config.stream = &stream;
    ToyModel model = model_of(problem, communicator, std::move(config));
    for (int step = 0; step < 4; ++step) train_step(problem, model, world.rank, step);
    model.pipeline().drain();
    const auto numel = static_cast<double>(problem.num_values());
    if (world.rank == 0) found = (stream.bytes() - 4.0 * numel) / numel;
  });
  return found;
}

TEST(NodeGossip, NeedsLessMemoryWithShardedStates) {
  for (const int node_size : {2, 4}) {
    SCOPED_TRACE(node_size);
    // Parameters and gradients to send; in the shard three states and an inbox.
    const double expected = 8.0 + 16.0 / node_size;
    EXPECT_NEAR(bytes_per_parameter(node_size, kSharded), expected, 0.05 * expected);
    // The sums and the mixed parameters as well, and all states.
    const double replicated = 16.0 + 12.0 + 4.0 / node_size;
    EXPECT_NEAR(bytes_per_parameter(node_size, kReplicated), replicated, 0.05 * replicated);
  }
}

TEST(NodeGossip, RefusesShardedStatesOnGpus) {
  for (const Where where : {Where::kLagging, Where::kDevice, Where::kNccl}) {
    Problem problem = nodes_of(1, 2, "ring", kSharded);
    FakeNcclHub hub;
    run_ranks(2, [&](Communicator& communicator, const World&) {
      TestDevice device(where, communicator, hub);
      EXPECT_THROW(model_on(problem, device), ConfigError) << name_of(where);
    });
  }
}

/// Expects the bits of another algorithm from both forms.
void expect_equals(const char* algorithm, int num_nodes, int node_size) {
  for (const char* form : kForms) {
    Problem problem = nodes_of(num_nodes, node_size, "ring", form);
    const Trajectory nodes = run_pipeline(problem);
    problem.algorithm = algorithm;
    problem.algorithm_options = "";
    EXPECT_EQ(run_pipeline(problem), nodes) << form;
  }
}

TEST(NodeGossip, IsAllReduceInOneNode) { expect_equals("allreduce", 1, 3); }

TEST(NodeGossip, IsGossipInNodesOfOneRank) { expect_equals("gossip", 4, 1); }

}  // namespace
}  // namespace gossamer
