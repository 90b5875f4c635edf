// Tests every optimizer against the reference, step by step.

#include "test/optim/parameters.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.hpp"
#include "base/host_stream.hpp"
#include "base/text.hpp"
#include "base/worker_pool.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

using reference::Rule;

constexpr int kNumSteps = 30;

template <class T>
constexpr double kTolerance = sizeof(T) == 4 ? 2e-6 : 1e-12;

/// The arguments of an update other than parameter and gradient.
struct Setting {
  std::size_t numel = 64;
  double keep = 1.0;
  /// One weight per inbox.
  std::vector<double> take = {};
  double gradient_scale = 1.0;
  double weight_decay = 0.0;
  /// Every third step has no gradient.
  bool leaves_out = false;
};

std::string text_of(const Setting& s) {
  return concat(s.numel, " elements, keep ", s.keep, ", take ", join(s.take, " "), ", scale ",
                s.gradient_scale, ", decay ", s.weight_decay, ", leaves out ", s.leaves_out);
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const std::size_t numel : {0U, 1U, 7U, 64U, 1000U}) all.push_back({.numel = numel});
  for (const double decay : {0.0, 0.01, 0.3}) {
    // A pair that averages; a pair that does not; a group of four with w = 0.4, p = 0.2.
    all.push_back({.keep = 0.5, .take = {0.5}, .weight_decay = decay});
    all.push_back({.keep = 0.7, .take = {0.3}, .weight_decay = decay});
    all.push_back({.keep = 0.2, .take = {0.2}, .weight_decay = decay});
    // Several neighbours; a node that takes the result of its leader.
    all.push_back({.keep = 0.3, .take = {0.5, 0.2}, .weight_decay = decay});
    all.push_back({.keep = 0.1, .take = {0.2, 0.3, 0.1, 0.3}, .weight_decay = decay});
    all.push_back({.keep = 0.0, .take = {1.0}, .weight_decay = decay});
  }
  for (const double scale : {0.125, 1.0 / 3.0, 4.0}) {
    all.push_back({.gradient_scale = scale, .weight_decay = 0.02});
  }
  for (const std::size_t numel : {0U, 1U, 7U, 1000U}) {
    all.push_back({numel, 0.5, {0.5}, 0.25, 0.05, true});
    all.push_back({numel, 0.4, {0.3, 0.2, 0.1}, 0.25, 0.05, true});
  }
  all.push_back({.weight_decay = 0.1, .leaves_out = true});
  return all;
}

double relative_error(double actual, double expected) {
  const double error = std::abs(actual - expected) / std::max(1.0, std::abs(expected));
  return std::isnan(error) ? HUGE_VAL : error;
}

template <class T>
double largest_error(std::span<T> actual, const std::vector<double>& expected) {
  double largest = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, relative_error(static_cast<double>(actual[i]), expected[i]));
  }
  return largest;
}

/// Both sides of one parameter through many steps. G as in TestParameter.
template <class T, class G = T>
class Duel {
 public:
  Duel(const Rule& rule, const Setting& setting, const Optimizer& optimizer)
      : setting_(setting),
        optimizer_(optimizer),
        ours_(setting.numel, optimizer.num_states()),
        theirs_(rule, setting.numel) {
    for (std::size_t k = 0; k < setting.take.size(); ++k) inboxes_.emplace_back(setting.numel);
    draw(random_, ours_.p.values());
    expected_ = as_doubles(ours_.p.values());
    for (std::size_t i = 0; i < setting.numel; ++i) {
      ours_.rounded.values()[i] = element<G>(static_cast<double>(ours_.p.values()[i]));
    }
  }

  void step(int number) {
    const bool has_gradient = !(setting_.leaves_out && number % 3 == 1);
    const double lr = 0.01 + 0.002 * (number % 4);
    draw(random_, ours_.g.values());
    std::vector<Inbox> inboxes;
    for (std::size_t k = 0; k < inboxes_.size(); ++k) {
      draw(random_, inboxes_[k].values());
      inboxes.push_back({inboxes_[k].block(), setting_.take[k]});
    }
    const std::vector<double> before = expected_;
    mix_expected();
    if (has_gradient) {
      update_expected(lr, before);
    } else {
      theirs_.rest(expected_, before);
    }

    ParameterUpdate update = ours_.next_update();
    update.lr = lr;
    update.weight_decay = setting_.weight_decay;
    update.gradient_scale = setting_.gradient_scale;
    update.keep = setting_.keep;
    update.inboxes = inboxes;
    if (!has_gradient) update.gradient = {};
    update_one(optimizer_, update);
    if (has_gradient) ++ours_.num_updates;
  }

  double error() { return largest_error(ours_.p.values(), expected_); }
  [[nodiscard]] bool intact() const { return ours_.intact(); }
  /// True if the rounded copy is the parameter, rounded.
  bool is_rounded() {
    const std::span<G> rounded = ours_.rounded.values();
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      if (rounded[i] != element<G>(static_cast<double>(ours_.p.values()[i]))) return false;
    }
    return true;
  }

 private:
  void mix_expected() {
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      expected_[i] *= setting_.keep;
      for (std::size_t k = 0; k < inboxes_.size(); ++k) {
        expected_[i] += setting_.take[k] * static_cast<double>(inboxes_[k].values()[i]);
      }
    }
  }

  void update_expected(double lr, const std::vector<double>& before) {
    std::vector<double> gradient = as_doubles(ours_.g.values());
    for (double& g : gradient) g *= setting_.gradient_scale;
    theirs_.step(expected_, gradient, lr, setting_.weight_decay, before);
  }

  Setting setting_;
  const Optimizer& optimizer_;
  Random random_ = Random(42);
  TestParameter<T, G> ours_;
  std::vector<Fenced<T>> inboxes_;
  reference::Optimizer theirs_;
  std::vector<double> expected_;
};

class EveryOptimizer : public testing::TestWithParam<Rule> {
 protected:
  std::unique_ptr<Optimizer> make() {
    return make_optimizer(GetParam().type, Options::parse(GetParam().yaml()));
  }

  template <class T, class G = T>
  void fight() {
    const std::unique_ptr<Optimizer> optimizer = make();
    for (const Setting& setting : settings()) {
      Duel<T, G> duel(GetParam(), setting, *optimizer);
      double worst = 0.0;
      for (int step = 0; step < kNumSteps; ++step) {
        duel.step(step);
        worst = std::max(worst, duel.error());
        // EXTRA adds up the rounding of all steps, twice over: x' = 2 x - y - u without mixing.
        const double factor = GetParam().type == "extra" ? 20.0 : 1.0;
        ASSERT_LE(worst, factor * kTolerance<T>) << text_of(setting) << ", step " << step + 1;
        if (!std::is_same_v<T, G>) {
          ASSERT_TRUE(duel.is_rounded()) << text_of(setting) << ", step " << step + 1;
        }
      }
      ASSERT_TRUE(duel.intact()) << "wrote past an end: " << text_of(setting);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Rules, EveryOptimizer, testing::ValuesIn(rules_under_test()), rule_name);

TEST_P(EveryOptimizer, FollowsTheReferenceInFloat32) { fight<float>(); }
TEST_P(EveryOptimizer, FollowsTheReferenceInFloat64) { fight<double>(); }
TEST_P(EveryOptimizer, FollowsTheReferenceWithAMasterCopy) { fight<float, BFloat16>(); }

TEST_P(EveryOptimizer, OnlyMixesWithoutAGradient) {
  const std::unique_ptr<Optimizer> optimizer = make();
  TestParameter<float> x(100, optimizer->num_states());
  Random random(1);
  draw(random, x.p.values());
  draw(random, x.inbox.values());
  for (Fenced<float>& state : x.states) draw(random, state.values());
  const std::vector<Fenced<float>> states = x.states;
  const std::vector<double> before = as_doubles(x.p.values());
  ParameterUpdate update = x.next_update();
  update.gradient = {};
  const std::array inboxes = {Inbox{x.inbox.block(), 0.3}};
  update.keep = 0.7;
  update.inboxes = inboxes;
  update.lr = 1.0;
  update.weight_decay = 0.5;
  update_one(*optimizer, update);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_NEAR(x.p.values()[i], 0.7 * before[i] + 0.3 * x.inbox.values()[i], 2e-7);
  }
  for (std::size_t k = 0; k < states.size(); ++k) {
    EXPECT_EQ(as_doubles(x.states[k].values()), as_doubles(Fenced<float>(states[k]).values()));
  }
}

TEST_P(EveryOptimizer, DoesNothingWithoutGradientAndInbox) {
  const std::unique_ptr<Optimizer> optimizer = make();
  TestParameter<double> x(33, optimizer->num_states());
  Random random(2);
  draw(random, x.p.values());
  const std::vector<double> before = as_doubles(x.p.values());
  ParameterUpdate update = x.next_update();
  update.gradient = {};
  // Without inboxes mix() ignores `keep`. Without a gradient the states may be missing, too.
  update.keep = 0.5;
  update.lr = 1.0;
  update.weight_decay = 0.5;
  update_one(*optimizer, update);
  EXPECT_EQ(as_doubles(x.p.values()), before);
}

TEST_P(EveryOptimizer, LeavesGradientAndInboxAlone) {
  const std::unique_ptr<Optimizer> optimizer = make();
  TestParameter<float> x(50, optimizer->num_states());
  Random random(3);
  draw(random, x.g.values());
  draw(random, x.inbox.values());
  const std::vector<double> gradient = as_doubles(x.g.values());
  const std::vector<double> inbox = as_doubles(x.inbox.values());
  ParameterUpdate update = x.next_update();
  const std::array inboxes = {Inbox{x.inbox.block(), 0.5}};
  update.keep = 0.5;
  update.inboxes = inboxes;
  update.lr = 0.1;
  update.weight_decay = 0.1;
  update.gradient_scale = 0.5;
  update_one(*optimizer, update);
  EXPECT_EQ(as_doubles(x.g.values()), gradient);
  EXPECT_EQ(as_doubles(x.inbox.values()), inbox);
}

TEST_P(EveryOptimizer, HandlesVanishingGradients) {
  const std::unique_ptr<Optimizer> optimizer = make();
  TestParameter<float> x(8, optimizer->num_states());
  std::ranges::fill(x.p.values(), 1.0F);
  for (int step = 0; step < 10; ++step) {
    ParameterUpdate update = x.next_update();
    update.lr = 0.1;
    update_one(*optimizer, update);
    ++x.num_updates;
  }
  for (const float p : x.p.values()) EXPECT_EQ(p, 1.0F);
}

TEST_P(EveryOptimizer, RefusesIntegers) {
  const std::unique_ptr<Optimizer> optimizer = make();
  std::vector<std::int64_t> numbers(4);
  const ParameterUpdate update{.parameter = block_of(std::span(numbers)),
                               .gradient = block_of(std::span(numbers))};
  EXPECT_THROW(update_one(*optimizer, update), std::logic_error);
}

TEST_P(EveryOptimizer, RefusesGradientsOfAnotherType) {
  const std::unique_ptr<Optimizer> optimizer = make();
  TestParameter<float, BFloat16> x(4, optimizer->num_states());
  ParameterUpdate update = x.next_update();
  update.rounded = {};
  EXPECT_THROW(update_one(*optimizer, update), std::logic_error);
  TestParameter<double> y(4, optimizer->num_states());
  update = y.next_update();
  update.gradient = x.p.block();
  EXPECT_THROW(update_one(*optimizer, update), std::logic_error);
}

TEST_P(EveryOptimizer, ServesSeveralThreadsAtOnce) {
  const std::unique_ptr<Optimizer> optimizer = make();
  const auto train = [&](std::vector<double>& result) {
    Duel<float> duel(GetParam(), {.numel = 257, .keep = 0.5, .take = {0.5}}, *optimizer);
    for (int step = 0; step < kNumSteps; ++step) {
      duel.step(step);
      result.push_back(duel.error());
    }
  };
  std::vector<std::vector<double>> errors(4);
  std::vector<std::thread> threads;
  for (std::vector<double>& mine : errors) threads.emplace_back(train, std::ref(mine));
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<double>& mine : errors) {
    EXPECT_EQ(mine, errors.front());
    EXPECT_LE(std::ranges::max(mine), kTolerance<float>);
  }
}

TEST(BlockUpdate, RefusesGradientsThatDoNotFit) {
  const auto sgd = make_optimizer("sgd");
  const Buffer parameters(4, DType::kFloat32);
  const Buffer rounded(4, DType::kBFloat16);
  const Block wide = parameters.block();
  const Block narrow = rounded.block();
  const auto update = [&](const Block& copy, const ConstBlock& first, const ConstBlock& second) {
    InlineStream stream;
    enqueue_update(stream, *sgd,
                   {.parameters = wide,
                    .rounded = copy,
                    .segments = {{.offset = 0, .numel = 2, .gradient = first},
                                 {.offset = 2, .numel = 2, .gradient = second}}});
  };
  const ConstBlock g32 = part_of(wide, 0, 2);
  const ConstBlock g16 = part_of(narrow, 0, 2);
  EXPECT_NO_THROW(update({}, g32, g32));
  EXPECT_NO_THROW(update(narrow, g16, g16));
  EXPECT_NO_THROW(update(narrow, g32, g32));
  EXPECT_NO_THROW(update(narrow, {}, g16));
  EXPECT_THROW(update({}, g16, g16), std::logic_error);
  EXPECT_THROW(update(narrow, g16, g32), std::logic_error);
}

TEST(BlockUpdate, TakesElementsAsTheyArrive) {
  // Parts that threads share and a part that one thread does; borders inside of parameters.
  constexpr std::int64_t kNumel = 200'000;
  for (const int num_threads : {1, 3}) {
    const auto sgd = make_optimizer("sgd");
    WorkerPool pool(num_threads);
    const Buffer parameters(kNumel, DType::kFloat32);
    const Buffer gradient(kNumel, DType::kFloat32);
    const Buffer inbox(kNumel, DType::kFloat32);
    const auto x = parameters.block().as<float>();
    std::ranges::fill(x, 1.0F);
    std::ranges::fill(gradient.block().as<float>(), 1.0F);
    std::ranges::fill(inbox.block().as<float>(), std::numeric_limits<float>::quiet_NaN());
    std::int64_t there = 0;
    const auto wait_for_more = [&] {
      // Everything that was there has been used, and nothing else.
      EXPECT_EQ(std::ranges::count(x, 1.5F), there);
      EXPECT_EQ(std::ranges::count(x, 1.0F), kNumel - there);
      there = std::min(there + 80'000, kNumel);
      std::ranges::fill(part_of(inbox.block(), 0, there).as<float>(), 3.0F);
      return there;
    };
    InlineStream stream;
    enqueue_update(
        stream, *sgd,
        {.parameters = parameters.block(),
         .segments = {{.offset = 0,
                       .numel = 100'001,
                       .gradient = part_of(gradient.block(), 0, 100'001)},
                      {.offset = 100'001,
                       .numel = kNumel - 100'001,
                       .gradient = part_of(gradient.block(), 100'001, kNumel - 100'001)}},
         .lr = 0.5,
         .intake = {.keep = 0.5,
                    .inboxes = {{inbox.block(), 0.5}},
                    .exchange = {.wait_for_more = wait_for_more}},
         .pool = &pool});
    EXPECT_EQ(there, kNumel);
    EXPECT_EQ(std::ranges::count(x, 1.5F), kNumel);
  }
}

TEST(BlockUpdate, MixesWhenAllIsThere) {
  const Buffer block(8, DType::kFloat32);
  const Buffer inbox(8, DType::kFloat32);
  std::int64_t there = 0;
  const auto wait_for_more = [&] {
    there += 4;
    std::ranges::fill(part_of(inbox.block(), 0, there).as<float>(), 2.0F);
    return there;
  };
  InlineStream stream;
  enqueue_mix(stream, block.block(), 0.5, {{inbox.block(), 0.5}}, {.wait_for_more = wait_for_more});
  EXPECT_EQ(there, 8);
  EXPECT_EQ(std::ranges::count(block.block().as<float>(), 1.0F), 8);
}

}  // namespace
}  // namespace gossamer
