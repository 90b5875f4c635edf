// Tests that one rank may fail at any moment. The other ranks learn of it and end. What the ranks
// leave behind (exchanges under way, work on streams) must not use memory that is gone; the
// sanitizers check this.

#include "test/base/thrown.hpp"
#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/problem.hpp"
#include "test/support/sanitized.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "comm/forwarding_communicator.hpp"
#include "core/bucket/model_average.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

constexpr int kNumRanks = 4;
constexpr int kFailing = 2;
constexpr int kLastStep = 2;

enum class Moment : std::uint8_t { kBetweenGradients, kBeforeStepEnds, kAfterStep, kBeforeAverage };

constexpr std::array kMoments = {Moment::kBetweenGradients, Moment::kBeforeStepEnds,
                                 Moment::kAfterStep, Moment::kBeforeAverage};

/// Makes a few steps and the mean model. Calls `reach` at every moment of the last step.
template <class Reach>
void train(ToyModel& model, Communicator& communicator, std::size_t num_values,
           const Reach& reach) {
  const std::vector<double> gradient(num_values, 1.0);
  for (int step = 0; step <= kLastStep; ++step) {
    for (std::int64_t i = 0; i < model.num_parameters(); ++i) {
      if (step == kLastStep && i == model.num_parameters() / 2) reach(Moment::kBetweenGradients);
      model.offer(i, gradient);
    }
    if (step == kLastStep) reach(Moment::kBeforeStepEnds);
    model.pipeline().finish_step();
  }
  reach(Moment::kAfterStep);
  model.pipeline().drain();
  reach(Moment::kBeforeAverage);
  const ModelAverage average(communicator, model.stream(), model.pipeline().memory());
}

using Case = std::tuple<Where, std::string, std::string>;

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const auto& [where, algorithm, topology] = info.param;
  std::string name = concat(name_of(where), "_", algorithm, "_", topology);
  std::ranges::replace(name, '-', '_');
  return name;
}

class Failure : public testing::TestWithParam<Case> {};

Problem problem_of(const Case& parameters) {
  const auto& [where, algorithm, topology] = parameters;
  Problem problem;
  problem.num_ranks = kNumRanks;
  problem.algorithm = algorithm;
  problem.topology = make_topology(topology, {.size = kNumRanks, .node_size = 2});
  problem.where = where;
  return problem;
}

/// Lets rank 0 go on with its start when another rank has failed.
class LateStart : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::vector<std::string> all_gather(std::string text) override {
    std::vector<std::string> texts = ForwardingCommunicator::all_gather(std::move(text));
    while (rank() == 0 && what_of<CommError>([this] { check(); }).empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // A watchdog has time to find the failure, too.
    if (rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return texts;
  }
};

/// Runs the ranks over communicators of type Host, from start to end.
template <class Host>
void expect_all_are_told(const Problem& problem, Moment moment) {
  FakeNcclHub hub;
  std::mutex mutex;
  std::vector<std::string> told;
  const auto body = [&](Communicator& inner, const World& world) {
    // A rank that is slow to start is told before its first step, where the others do not wait.
    try {
      Host host(inner);
      TestDevice device(problem.where, host, hub);
      ToyModel model = model_on(problem, device);
      train(model, device.communicator(), problem.num_values(), [&](Moment now) {
        if (world.rank == kFailing && now == moment) throw DataError("torn file");
      });
    } catch (const CommError& error) {
      const std::lock_guard lock(mutex);
      told.emplace_back(error.what());
      throw;
    }
    return 0;
  };
  const LaunchOptions options{
      .num_ranks = kNumRanks, .node_size = 2, .timeout_s = 60.0, .log_level = LogLevel::kOff};
  EXPECT_EQ(launch("threads", options, body), static_cast<int>(ExitCode::kData));
  EXPECT_EQ(told.size(), kNumRanks - 1U);
  for (const std::string& text : told) EXPECT_TRUE(contains(text, "rank 2")) << text;
}

TEST_P(Failure, OfARankEndsTheOthersAndLeavesNothingBehind) {
  for (const Moment moment : kMoments) {
    SCOPED_TRACE(static_cast<int>(moment));
    expect_all_are_told<ForwardingCommunicator>(problem_of(GetParam()), moment);
  }
}

TEST(Failure, OfARankEndsAnotherOneThatHasNotStartedYet) {
  // The only algorithm whose ranks do not wait for one another in their steps.
  expect_all_are_told<LateStart>(problem_of({Where::kNccl, "local", "ring"}),
                                 Moment::kBetweenGradients);
}

/// Every algorithm at every place, and gossip with every kind of round. A sanitizer watches every
/// third case: all places and algorithms, and not every pair of them.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Where where : {Where::kHost, Where::kLagging, Where::kRelayed, Where::kDevice,
                            Where::kDirect, Where::kNccl}) {
    for (const std::string& algorithm : algorithms_in_step()) {
      if (!runs_at(algorithm, where)) continue;
      cases.push_back({where, algorithm, topology_for(algorithm, "ring")});
    }
    for (const char* topology : {"one-peer-exp", "complete", "hierarchical"}) {
      cases.push_back({where, "gossip", topology});
    }
  }
  if (kSanitized) {
    std::size_t i = 0;
    std::erase_if(cases, [&i](const Case&) { return i++ % 3 != 0; });
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Failure, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace gossamer
