// Tests which state is read, and when: a caller need not clear a state that is not read.

#include "test/optim/parameters.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "optim/flush_denormals.hpp"

namespace gossamer {
namespace {

using reference::Rule;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Called with the parameter before its next step.
using Spoiler = void (*)(TestParameter<double>&, std::int64_t accum_iter);

std::vector<double> train(const Rule& rule, int num_steps, Spoiler spoil) {
  const auto optimizer = make_optimizer(rule.type, Options::parse(rule.yaml()));
  TestParameter<double> x(19, optimizer->num_states());
  Random random(7);
  draw(random, x.p.values());
  for (int step = 0; step < num_steps; ++step) {
    draw(random, x.g.values());
    spoil(x, rule.accum_iter);
    ParameterUpdate update = x.next_update();
    update.lr = 0.01;
    update.weight_decay = 0.1;
    update_one(*optimizer, update);
    ++x.num_updates;
  }
  return as_doubles(x.p.values());
}

void leave_alone(TestParameter<double>&, std::int64_t) {}

void spoil_accumulator(TestParameter<double>& x, std::int64_t accum_iter) {
  if (x.num_updates % accum_iter == 0) std::ranges::fill(x.states.at(2).values(), kNan);
}

void spoil_before_first_step(TestParameter<double>& x, std::int64_t) {
  if (x.num_updates == 0) std::ranges::fill(x.states.at(0).values(), kNan);
}

class Accumulation : public testing::TestWithParam<Rule> {};

std::vector<Rule> accumulating_rules() {
  std::vector<Rule> rules = rules_under_test();
  std::erase_if(rules, [](const Rule& rule) { return !rule.accumulates(); });
  return rules;
}
INSTANTIATE_TEST_SUITE_P(Rules, Accumulation, testing::ValuesIn(accumulating_rules()), rule_name);

TEST_P(Accumulation, OverwritesTheAccumulatorInTheFirstStepOfACycle) {
  const std::vector<double> clean = train(GetParam(), 30, leave_alone);
  const std::vector<double> spoilt = train(GetParam(), 30, spoil_accumulator);
  for (const double p : clean) ASSERT_FALSE(std::isnan(p));
  EXPECT_EQ(spoilt, clean);
}

TEST_P(Accumulation, MovesTheMomentsAtTheEndOfACycleOnly) {
  const auto optimizer = make_optimizer(GetParam().type, Options::parse(GetParam().yaml()));
  TestParameter<double> x(5, optimizer->num_states());
  Random random(8);
  for (int step = 1; step <= 30; ++step) {
    draw(random, x.g.values());
    const std::vector<double> m = as_doubles(x.states[0].values());
    const std::vector<double> v = as_doubles(x.states[1].values());
    ParameterUpdate update = x.next_update();
    update.lr = 0.01;
    update_one(*optimizer, update);
    ++x.num_updates;
    const bool ends = step % GetParam().accum_iter == 0;
    EXPECT_EQ(as_doubles(x.states[0].values()) == m, !ends) << step;
    EXPECT_EQ(as_doubles(x.states[1].values()) == v, !ends) << step;
  }
}

TEST_P(Accumulation, KeepsTheMomentsOfTheReference) {
  const auto optimizer = make_optimizer(GetParam().type, Options::parse(GetParam().yaml()));
  TestParameter<double> x(11, optimizer->num_states());
  reference::Optimizer theirs(GetParam(), 11);
  std::vector<double> p(11);
  Random random(9);
  for (int step = 1; step <= 30; ++step) {
    draw(random, x.g.values());
    ParameterUpdate update = x.next_update();
    update.lr = 0.01;
    update.weight_decay = 0.1;
    update_one(*optimizer, update);
    ++x.num_updates;
    theirs.step(p, as_doubles(x.g.values()), 0.01, 0.1);
    for (std::size_t i = 0; i < p.size(); ++i) {
      EXPECT_NEAR(x.states[0].values()[i], theirs.m[i], 1e-13) << step;
      EXPECT_NEAR(x.states[1].values()[i], theirs.v[i], 1e-13) << step;
      // At the end of a cycle the library leaves the sum as it is; the next cycle overwrites it.
      if (step % GetParam().accum_iter == 0) continue;
      EXPECT_NEAR(x.states[2].values()[i], theirs.sum[i], 1e-13) << step;
    }
  }
}

TEST(Sgd, SetsTheBufferInTheFirstStep) {
  for (const bool nesterov : {false, true}) {
    const Rule rule{.type = "sgd", .momentum = 0.9, .nesterov = nesterov};
    const std::vector<double> clean = train(rule, 5, leave_alone);
    for (const double p : clean) ASSERT_FALSE(std::isnan(p));
    EXPECT_EQ(train(rule, 5, spoil_before_first_step), clean);
  }
}

TEST(Sgd, NeedsStateForMomentumOnly) {
  EXPECT_EQ(make_optimizer("sgd")->num_states(), 0);
  EXPECT_EQ(make_optimizer("sgd", Options::parse("momentum: 0.9"))->num_states(), 1);
}

TEST(AdamFamily, NeedsTwoOrThreeStates) {
  EXPECT_EQ(make_optimizer("adam")->num_states(), 2);
  EXPECT_EQ(make_optimizer("adamw")->num_states(), 2);
  EXPECT_EQ(make_optimizer("accum_adam")->num_states(), 3);
  EXPECT_EQ(make_optimizer("accum_adamw")->num_states(), 3);
}

TEST(AdamFamily, AccumulatingOneStepIsAdam) {
  const std::vector<double> adam = train({.type = "adam"}, 30, leave_alone);
  const std::vector<double> accum = train({.type = "accum_adam", .accum_iter = 1}, 30, leave_alone);
  for (std::size_t i = 0; i < adam.size(); ++i) EXPECT_NEAR(adam[i], accum[i], 1e-13);
}

TEST(FlushDenormals, FlushesWhileItLivesAndNotAfterwards) {
#if defined(__SSE__)
  volatile float tiny = std::numeric_limits<float>::min();
  {
    const FlushDenormals flush;
    EXPECT_EQ(tiny / 4.0F, 0.0F);
  }
  EXPECT_GT(tiny / 4.0F, 0.0F);
#else
  GTEST_SKIP() << "this processor is not asked to";
#endif
}

}  // namespace
}  // namespace gossamer
