// A pipeline whose host is no framework: the parameters are plain vectors of numbers.

#include "test/base/thrown.hpp"
#include "test/core/problem.hpp"
#include "test/core/ranks.hpp"
#include "test/core/step/saved_state.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "core/state/state_copy.hpp"
#include "core/step/pipeline.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

constexpr std::int64_t kMib = std::int64_t{1} << 20;

Pipeline::Config config_of(int num_ranks, std::int64_t bucket_bytes) {
  return {
      .exchange = {.algorithm = "gossip",
                   .topology = make_topology("ring", {.size = num_ranks, .node_size = num_ranks})},
      .optimizer = make_optimizer("adamw"),
      .schedule = std::make_shared<FixedSchedule>(0.05),
      .bucket_bytes = bucket_bytes};
}

/// One rank's parameters, which a framework would hold as tensors.
class Rank : public ParameterHost {
 public:
  Rank(Communicator& communicator, std::vector<std::int64_t> sizes, Pipeline::Config config)
      : rank_(communicator.rank()), sizes_(std::move(sizes)) {
    config.stream = &stream_;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const auto numel = static_cast<std::size_t>(sizes_[i]);
      own_.emplace_back(numel, static_cast<double>(rank_ + 1));
      gradients_.emplace_back(numel);
      places_.push_back(block_of(std::span(own_.back())));
    }
    pipeline_ = std::make_unique<Pipeline>(communicator, std::move(config),
                                           parameters_of_sizes(sizes_, DType::kFloat64), *this);
  }

  std::vector<ParameterMemory> move_parameters(const BucketPlan& plan) override {
    std::vector<ParameterMemory> memory;
    for (const BucketSpec& spec : plan.buckets) {
      memory.push_back(allocate_parameters(spec, stream_));
      for (const BucketEntry& entry : spec.entries) {
        Block& place = places_[static_cast<std::size_t>(entry.parameter)];
        const Block next = part_of(memory.back().parameters.block(), entry.offset, place.numel);
        std::ranges::copy(place.as<double>(), next.as<double>().begin());
        place = next;
      }
    }
    // The old memory may go now.
    memory_.push_back(memory);
    ++num_moves;
    return memory;
  }
  void parameters_have_moved() override {}
  void drain_parameters() override { pipeline_->drain(); }
  void after_update(const BucketSpec& spec) override { num_updated += std::ssize(spec.entries); }
  void average_parameters(double /*weight*/) override { ++num_averages; }

  void offer(std::int64_t i) {
    pipeline_->gradient_ready(i, block_of(std::span(gradients_[static_cast<std::size_t>(i)])));
  }

  /// Offers the gradients of these parameters in this order, as a backward pass would.
  void step(const std::vector<std::int64_t>& order) {
    for (const std::int64_t i : order) {
      const auto place = static_cast<std::size_t>(i);
      for (std::size_t e = 0; e < gradients_[place].size(); ++e) {
        gradients_[place][e] = places_[place].as<double>()[e] - static_cast<double>(rank_);
      }
      if (pipeline_->has_started()) {
        offer(i);
      } else {
        pipeline_->arrived(i);
      }
    }
    if (!pipeline_->has_plan()) {
      pipeline_->make_plan();
      pipeline_->start();
      for (const std::int64_t i : order) offer(i);
    }
    pipeline_->finish_step();
  }

  [[nodiscard]] std::vector<double> values() {
    pipeline_->drain();
    std::vector<double> all;
    for (const Block& place : places_)
      std::ranges::copy(place.as<double>(), std::back_inserter(all));
    return all;
  }

  [[nodiscard]] Pipeline& pipeline() { return *pipeline_; }

  int num_moves = 0;
  int num_averages = 0;
  std::int64_t num_updated = 0;

 private:
  int rank_;
  std::vector<std::int64_t> sizes_;
  InlineStream stream_;
  std::vector<std::vector<double>> own_;
  std::vector<std::vector<double>> gradients_;
  std::vector<Block> places_;
  std::vector<std::vector<ParameterMemory>> memory_;
  std::unique_ptr<Pipeline> pipeline_;
};

TEST(HostedPipeline, CutsBucketsInTheOrderOfArrival) {
  run_ranks(2, [](Communicator& communicator, const World&) {
    Rank rank(communicator, {3, 4, 5}, config_of(2, 1));
    rank.step({2, 0, 1});
    const BucketPlan& plan = rank.pipeline().plan();
    ASSERT_EQ(plan.buckets.size(), 3U);
    EXPECT_EQ(plan.buckets[0].entries[0].parameter, 2);
    EXPECT_EQ(plan.buckets[2].entries[0].parameter, 1);
    EXPECT_EQ(rank.pipeline().arrival_order(), (std::vector<std::int64_t>{2, 0, 1}));
    EXPECT_EQ(rank.num_updated, 3);
    EXPECT_EQ(rank.num_moves, 1);
    EXPECT_FALSE(rank.pipeline().is_offered(2)) << "in the next step";
    static_cast<void>(rank.values());
  });
}

TEST(HostedPipeline, TellsWhereItIs) {
  run_ranks(2, [](Communicator& communicator, const World&) {
    Rank rank(communicator, {3, 4}, config_of(2, 1));
    EXPECT_EQ(rank.pipeline().state(), PipelineState::kTracing);
    EXPECT_EQ(rank.pipeline().last_lr(), 0.05) << "of the first step";
    rank.step({1, 0});
    EXPECT_EQ(rank.pipeline().state(), PipelineState::kReady);
    rank.offer(1);
    EXPECT_EQ(rank.pipeline().state(), PipelineState::kInStep);
    EXPECT_TRUE(rank.pipeline().is_offered(1));
    rank.pipeline().finish_step();
    EXPECT_EQ(rank.pipeline().state(), PipelineState::kReady);
    static_cast<void>(rank.values());
  });
}

TEST(HostedPipeline, TellsItsHostOnceOfEveryBucketInEveryStep) {
  for (const std::string name : {"gossip", "allreduce", "local"}) {
    run_ranks(3, [&name](Communicator& communicator, const World&) {
      Pipeline::Config config = config_of(3, 1);
      config.exchange.algorithm = name;
      if (name != "gossip") config.exchange.topology = nullptr;
      Rank rank(communicator, {3, 4, 5}, config);
      rank.step({2, 0, 1});
      EXPECT_EQ(rank.num_updated, 3) << name;
      rank.step({});
      EXPECT_EQ(rank.num_updated, 6) << name << ": buckets without gradients";
      static_cast<void>(rank.values());
    });
  }
}

TEST(HostedPipeline, TakesTheOrderOfRank0WhereRanksDiffer) {
  run_ranks(2, [](Communicator& communicator, const World& world) {
    Rank rank(communicator, {3, 4, 5}, config_of(2, 1));
    const std::vector<std::int64_t> order =
        world.rank == 0 ? std::vector<std::int64_t>{2, 0, 1} : std::vector<std::int64_t>{1, 0, 2};
    rank.step(order);
    EXPECT_EQ(rank.pipeline().arrival_order(), (std::vector<std::int64_t>{2, 0, 1}));
    EXPECT_EQ(rank.num_updated, 3);
    static_cast<void>(rank.values());
  });
}

TEST(HostedPipeline, TrainsRanksThatUseDifferentParametersInTheFirstStep) {
  run_ranks(3, [](Communicator& communicator, const World& world) {
    Rank rank(communicator, {3, 4, 5, 6}, config_of(3, 1));
    // Rank 2 has no batch, and nobody uses the last parameter.
    std::vector<std::int64_t> order;
    if (world.rank < 2) order = {world.rank, 2};
    rank.step(order);
    EXPECT_EQ(rank.pipeline().arrival_order(), (std::vector<std::int64_t>{0, 2, 1}));
    for (int step = 0; step < 3; ++step) rank.step({3, 2, 1, 0});
    static_cast<void>(rank.values());
  });
}

TEST(HostedPipeline, RefusesRanksWithBucketsOfDifferentSizes) {
  run_ranks(2, [](Communicator& communicator, const World& world) {
    Rank rank(communicator, {3, 4}, config_of(2, 1 + world.rank));
    const std::string error = what_of<ConfigError>([&] { rank.step({0, 1}); });
    EXPECT_TRUE(contains(error, "the size of their buckets")) << error;
  });
}

TEST(HostedPipeline, TrainsAlikeWithBucketsOfAnySize) {
  run_ranks(3, [](Communicator& communicator, const World&) {
    std::vector<std::vector<double>> ends;
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{256}, 25 * kMib}) {
      Rank rank(communicator, {3, 40, 5, 0, 7}, config_of(3, bytes));
      for (int step = 0; step < 6; ++step) {
        // A parameter may be late, or have no gradient.
        rank.step(step % 2 == 0 ? std::vector<std::int64_t>{4, 1, 0, 3}
                                : std::vector<std::int64_t>{0, 2, 1});
        if (step == 3) rank.pipeline().replan(bytes == 1 ? kMib : 1);
      }
      ends.push_back(rank.values());
    }
    EXPECT_EQ(ends[1], ends[0]);
    EXPECT_EQ(ends[2], ends[0]);
  });
}

TEST(HostedPipeline, TriesSizesAndKeepsOne) {
  // More than one bucket of a MiB, so that sizes differ.
  const std::vector<std::int64_t> sizes(10, 40'000);
  run_ranks(2, [&](Communicator& communicator, const World&) {
    Rank tried(communicator, sizes, config_of(2, 0));
    Rank fixed(communicator, sizes, config_of(2, 25 * kMib));
    int num_steps = 0;
    do {
      for (Rank* rank : {&tried, &fixed}) rank->step({9, 8, 7, 6, 5, 4, 3, 2, 1, 0});
      ++num_steps;
    } while (tried.pipeline().tries_buckets());
    EXPECT_GT(num_steps, 10);
    EXPECT_GT(tried.num_moves, 2);
    EXPECT_EQ(fixed.num_moves, 1);
    EXPECT_EQ(tried.values(), fixed.values()) << "sizes change no bit";
  });
}

TEST(HostedPipeline, LoadsBeforeItsFirstStep) {
  run_ranks(2, [](Communicator& communicator, const World&) {
    Rank saved(communicator, {3, 4, 5}, config_of(2, 1));
    for (int step = 0; step < 4; ++step) saved.step({2, 0, 1});
    StateCopy state;
    saved.pipeline().visit_row_major(state, {});
    state.load();
    // Other buckets: the state is that of parameters.
    Rank loaded(communicator, {3, 4, 5}, config_of(2, kMib));
    loaded.pipeline().visit_row_major(state, {});
    EXPECT_EQ(loaded.pipeline().arrival_order(), (std::vector<std::int64_t>{2, 0, 1}));
    for (Rank* rank : {&saved, &loaded}) rank->step({0, 1, 2});
    EXPECT_EQ(loaded.values(), saved.values());
  });
}

TEST(HostedPipeline, SwitchesBeforeAndAfterItsFirstStep) {
  run_ranks(2, [](Communicator& communicator, const World&) {
    Rank rank(communicator, {3, 4}, config_of(2, 1));
    const auto next =
        std::shared_ptr<const Topology>(make_topology("complete", {.size = 2, .node_size = 2}));
    const AlgorithmSwitch change{.algorithm = "gossip", .topology = next, .average = true};
    rank.pipeline().switch_to(change);
    EXPECT_EQ(rank.num_averages, 1) << "there are no buckets that could be averaged";
    rank.step({1, 0});
    rank.pipeline().switch_to(change);
    EXPECT_EQ(rank.num_averages, 1);
    rank.step({1, 0});
    static_cast<void>(rank.values());
  });
}

}  // namespace
}  // namespace gossamer
