// Tests of steps that ranks commit together: all-reduce goes on when ranks die, and no rank updates
// alone.

#include "test/base/thrown.hpp"
#include "test/core/problem.hpp"
#include "test/core/ranks.hpp"
#include "test/core/step/saved_state.hpp"
#include "test/core/step/survivor_ranks.hpp"
#include "test/support/sanitized.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/forwarding_communicator.hpp"
#include "comm/session.hpp"
#include "core/step/algorithm_switch.hpp"
#include "topology/registry.hpp"

namespace gossamer::commit_test {
namespace {

constexpr int kSize = 4;
constexpr int kVictim = 1;
/// The step in which something happens; the first is 0.
constexpr int kStep = 3;
constexpr int kNumSteps = 8;

using Values = std::vector<std::vector<double>>;

Problem problem_of(int size, const GradientOptions& gradients, bool breaks) {
  Problem problem;
  problem.num_ranks = size;
  problem.algorithm = "allreduce";
  problem.rule = {.type = "adamw"};
  problem.same_start = true;
  problem.gradients = gradients;
  if (breaks) problem.breaks = [](int rank, int step) { return rank == 2 && step == kStep; };
  return problem;
}

/// How gradients are clipped, and whether the step in which something happens is to be left out.
struct Variant {
  GradientOptions gradients = {};
  bool breaks = false;
};
std::vector<Variant> variants() {
  const Variant whole = {.gradients = {.clip_mode = ClipMode::kGlobal, .clip_norm = 0.6}};
  // A sanitizer sees the same threads and memory in the others.
  if (kSanitized) return {{}, whole};
  return {{},
          whole,
          {.gradients = {.clip_mode = ClipMode::kDelayedGlobal, .clip_norm = 0.6}},
          {.gradients = {.nonfinite = NonFinite::kSkip}, .breaks = true}};
}

bool is_disturbed(Communicator& communicator) {
  try {
    communicator.check();
    return false;
  } catch (const PeerLost&) {
    return true;
  }
}

/// A schedule that a test may scale for a while.
class ScaledSchedule : public Schedule {
 public:
  explicit ScaledSchedule(std::shared_ptr<const Schedule> schedule)
      : schedule_(std::move(schedule)) {}
  [[nodiscard]] double lr(std::int64_t updates) const override {
    return factor * schedule_->lr(updates);
  }
  double factor = 1.0;

 private:
  std::shared_ptr<const Schedule> schedule_;
};

void wait_for(const std::atomic<int>& count, int goal) {
  while (count < goal) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// One rank of a run.
class Rank {
 public:
  Rank(const Problem& problem, TestDevice& device, Pipeline::Config config)
      : problem_(problem),
        communicator_(device.communicator()),
        schedule_(std::make_shared<ScaledSchedule>(config.schedule)),
        model_(model_of(problem, communicator_,
                        with(std::move(config), schedule_, device.stream()))) {}
  Rank(const Problem& problem, TestDevice& device) : Rank(problem, device, config_of(problem)) {}

  [[nodiscard]] ToyModel& model() { return model_; }
  [[nodiscard]] Pipeline& pipeline() { return model_.pipeline(); }
  [[nodiscard]] int step() const { return step_; }
  /// Makes a step with the data of rank `data`.
  void train(int data) {
    train_step(problem_, model_, data, step_);
    ++step_;
  }
  /// Trains up to a step, and goes on with the others whenever ranks are lost.
  void train_until(int end, int data) {
    while (step_ < end || pipeline().has_uncommitted_step()) {
      if (is_disturbed(communicator_)) {
        go_on(data);
      } else {
        train(data);
      }
    }
  }
  void go_on(int data) {
    pipeline().detach();
    const Membership membership = communicator_.elastic()->reconfigure(step_);
    while (step_ < membership.step) {
      pipeline().catch_up(membership.step);
      train(data);
    }
    schedule_->factor = factor;
    pipeline().resume({.to = goal});
    schedule_->factor = 1.0;
  }
  /// That of the learning rate while the ranks go on.
  double factor = 1.0;
  /// With what they go on.
  AlgorithmSwitch goal = {.algorithm = "allreduce"};
  /// Goes on from a state in which all had made so many steps.
  void load(const SavedState& state, int num_steps) {
    gossamer::load(pipeline(), state);
    step_ = num_steps;
  }

 private:
  static Pipeline::Config with(Pipeline::Config config, std::shared_ptr<const Schedule> schedule,
                               Stream* stream) {
    config.schedule = std::move(schedule);
    config.stream = stream;
    return config;
  }

  const Problem& problem_;
  Communicator& communicator_;
  std::shared_ptr<ScaledSchedule> schedule_;
  ToyModel model_;
  int step_ = 0;
};

/// All ranks have the same values, and those are as expected but for the rounding of means of equal
/// numbers.
void expect_replicas(const Values& values, const std::vector<double>& expected) {
  for (const std::vector<double>& own : values) {
    EXPECT_EQ(own, values.front());
    ASSERT_EQ(own.size(), expected.size());
    for (std::size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(own[i], expected[i], 1e-12) << i;
  }
}

/// The values of ranks 0, 2 and 3, of which rank 1 has died in a step.
Values survivors(const std::string& backend, const Problem& problem, int num_offered) {
  Values values(kSize);
  std::atomic<int> num_there = 0;
  run_survivors(backend, kSize, [&](Session& session, const MakeDevice& make_device) {
    const int data = session.world().rank;
    TestDevice device = make_device(session.communicator());
    Rank rank(problem, device);
    while (rank.step() < kStep) rank.train(data);
    ++num_there;
    if (data == kVictim) {
      // A rank that has not passed the last meeting would hold that step.
      wait_for(num_there, kSize);
      const std::vector<double> gradient(problem.num_values(), 1.0);
      for (std::int64_t i = 0; i < num_offered; ++i) rank.model().offer(i, gradient);
      return;
    }
    rank.train_until(kNumSteps, data);
    EXPECT_EQ(rank.pipeline().progress().num_steps, kNumSteps);
    values[static_cast<std::size_t>(data)] = rank.model().values();
    session.communicator().barrier();
    session.close();
  });
  values.erase(values.begin() + kVictim);
  return values;
}

/// The same without a death: four ranks make the first steps, and three others make the rest.
Values two_runs(const std::string& backend, const Problem& problem) {
  SavedState state;
  run_survivors(backend, kSize, [&](Session& session, const MakeDevice& make_device) {
    TestDevice device = make_device(session.communicator());
    Rank rank(problem, device);
    while (rank.step() < kStep) rank.train(session.world().rank);
    rank.pipeline().drain();
    if (session.world().rank == 0) state = saved(rank.pipeline());
    session.communicator().barrier();
    session.close();
  });
  Values values(kSize - 1);
  run_survivors(backend, kSize - 1, [&](Session& session, const MakeDevice& make_device) {
    const int place = session.world().rank;
    TestDevice device = make_device(session.communicator());
    Rank rank(problem, device);
    rank.load(state, kStep);
    while (rank.step() < kNumSteps) rank.train(place < kVictim ? place : place + 1);
    values[static_cast<std::size_t>(place)] = rank.model().values();
    session.communicator().barrier();
    session.close();
  });
  return values;
}

class UncommittedStepOn : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, UncommittedStepOn, testing::ValuesIn(kSurvivorRuns), own_name);

TEST_P(UncommittedStepOn, IsMadeAgainByThoseThatAreLeft) {
  for (const auto& [gradients, breaks] : variants()) {
    const Problem problem = problem_of(kSize, gradients, breaks);
    const Values expected = two_runs(GetParam(), problem);
    const auto count = static_cast<std::int64_t>(problem.sizes.size());
    for (const std::int64_t num_offered : {std::int64_t{0}, count / 2, count}) {
      SCOPED_TRACE(concat("clipping ", static_cast<int>(gradients.clip_mode), ", breaks ", breaks,
                          ", offered ", num_offered));
      expect_replicas(survivors(GetParam(), problem, static_cast<int>(num_offered)),
                      expected.front());
    }
  }
}

/// A rank that loses the others just after it has met them.
class LosesOthersOnce : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  void lose_in_next_meeting() { loses_ = true; }
  void lose() { is_lost_ = true; }
  void barrier() override {
    ForwardingCommunicator::barrier();
    is_lost_ = std::exchange(loses_, false);
    check();
  }
  void check() override {
    ForwardingCommunicator::check();
    if (is_lost_) throw PeerLost({.rank = rank(), .label = {.what = "barrier"}}, "for the test");
  }
  Membership reconfigure(std::int64_t step) override {
    is_lost_ = false;
    return ForwardingCommunicator::reconfigure(step);
  }

 private:
  bool loses_ = false;
  /// NCCL's watchdog asks as well.
  std::atomic<bool> is_lost_ = false;
};

/// The values of all ranks after kNumSteps steps. In the meeting of the step kStep rank `loser`
/// misses that the others have met; negative: no rank does. `pauses`: the others go no further
/// meanwhile.
Values committed_by_others(const std::string& backend, const Problem& problem, int loser,
                           bool pauses) {
  Values values(kSize);
  std::atomic<int> num_there = 0;
  run_survivors(backend, kSize, [&](Session& session, const MakeDevice& make_device) {
    const int data = session.world().rank;
    LosesOthersOnce communicator(session.communicator());
    TestDevice device = make_device(communicator);
    Rank rank(problem, device);
    while (rank.step() < kStep) rank.train(data);
    if (data == loser) communicator.lose_in_next_meeting();
    rank.train(data);
    ++num_there;
    // Another rank would hold it too, if the loser disturbed its meeting.
    wait_for(num_there, kSize);
    EXPECT_EQ(rank.pipeline().has_uncommitted_step(), data == loser);
    if (data == loser) {
      // Not with a gradient, which would take the place of the one that is kept.
      EXPECT_THROW(rank.pipeline().finish_step(), PeerLost);
    }
    while (pauses && loser >= 0 && !is_disturbed(communicator)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // The step that one rank has not updated yet is of the old world. No other step is held then.
    if (pauses) rank.factor = 0.5;
    rank.train_until(kNumSteps, data);
    EXPECT_EQ(rank.pipeline().progress().num_steps, kNumSteps);
    values[static_cast<std::size_t>(data)] = rank.model().values();
    session.communicator().barrier();
    session.close();
  });
  return values;
}

TEST_P(UncommittedStepOn, TakesTheSumsWithWhichOthersHaveUpdated) {
  for (const auto& [gradients, breaks] : variants()) {
    const Problem problem = problem_of(kSize, gradients, breaks);
    const Values expected = committed_by_others(GetParam(), problem, -1, false);
    for (const int loser : {0, 2}) {
      for (const bool pauses : {false, true}) {
        SCOPED_TRACE(concat("clipping ", static_cast<int>(gradients.clip_mode), ", breaks ", breaks,
                            ", loser ", loser, ", pauses ", pauses));
        expect_replicas(committed_by_others(GetParam(), problem, loser, pauses), expected.front());
      }
    }
  }
}

/// The others have made a step with another algorithm.
TEST_P(UncommittedStepOn, IsMadeAloneWhereOthersHaveSwitched) {
  Problem problem = problem_of(kSize, {}, false);
  // With it the others would need the loser to switch.
  problem.shares_memory = false;
  const AlgorithmSwitch gossip{
      .algorithm = "gossip",
      .topology = make_topology("ring", {.size = kSize, .node_size = kSize})};
  run_survivors(GetParam(), kSize, [&](Session& session, const MakeDevice& make_device) {
    const int data = session.world().rank;
    LosesOthersOnce communicator(session.communicator());
    TestDevice device = make_device(communicator);
    Rank rank(problem, device);
    while (rank.step() < kStep) rank.train(data);
    rank.goal = gossip;
    if (data == kVictim) {
      communicator.lose();
      EXPECT_THROW(rank.pipeline().switch_to(gossip), PeerLost);
      rank.go_on(data);
    } else {
      // The loser may disturb it.
      static_cast<void>(what_of<PeerLost>([&] {
        rank.pipeline().switch_to(gossip);
        rank.train(data);
      }));
    }
    rank.train_until(kNumSteps, data);
    EXPECT_EQ(rank.pipeline().progress().num_steps, kNumSteps);
    session.communicator().barrier();
    session.close();
  });
}

TEST_P(UncommittedStepOn, CountsNothingOfARankThatJoins) {
  const std::string& backend = GetParam();
  const Problem problem = problem_of(kSize, {}, false);
  Values fresh(kSize - 1);
  run_survivors(backend, kSize - 1, [&](Session& session, const MakeDevice& make_device) {
    TestDevice device = make_device(session.communicator());
    Rank rank(problem, device);
    rank.train(session.world().rank);
    fresh[static_cast<std::size_t>(session.world().rank)] = rank.model().values();
    session.communicator().barrier();
    session.close();
  });
  Values values(kSize);
  run_survivors(backend, kSize, [&](Session& session, const MakeDevice& make_device) {
    const int data = session.world().rank;
    const bool joins = data == kSize - 1;
    Pipeline::Config config = config_of(problem);
    config.begins_detached = true;
    TestDevice device = make_device(session.communicator());
    Rank rank(problem, device, std::move(config));
    if (!joins) {
      rank.train(data);
      EXPECT_TRUE(rank.pipeline().has_uncommitted_step());
      EXPECT_EQ(rank.pipeline().progress().num_steps, 0);
    }
    rank.pipeline().resume(
        {.to = {.algorithm = config_of(problem).exchange.algorithm}, .joins = joins});
    EXPECT_FALSE(rank.pipeline().has_uncommitted_step());
    EXPECT_EQ(rank.pipeline().progress().num_steps, 1);
    values[static_cast<std::size_t>(data)] = rank.model().values();
    session.communicator().barrier();
    session.close();
  });
  expect_replicas(values, fresh.front());
}

}  // namespace
}  // namespace gossamer::commit_test
