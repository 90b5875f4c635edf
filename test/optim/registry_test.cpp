#include "optim/registry.hpp"

#include "test/base/thrown.hpp"
#include "test/optim/parameters.hpp"

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

std::string optimizer_refusal(std::string_view name, std::string_view options = "") {
  const Options given = Options::parse(options);
  return what_of<ConfigError>([&] { (void)make_optimizer(name, given); });
}

std::string schedule_refusal(std::string_view name, std::string_view options = "") {
  const Options given = Options::parse(options);
  return what_of<ConfigError>([&] { (void)make_schedule(name, {}, given); });
}

TEST(OptimizerTable, HasWholeRows) {
  for (const OptimizerEntry& entry : optimizer_table()) {
    EXPECT_FALSE(entry.summary.empty()) << entry.name;
    ASSERT_NE(entry.make, nullptr) << entry.name;
    const auto optimizer = make_optimizer(entry.name);
    ASSERT_NE(optimizer, nullptr) << entry.name;
    EXPECT_LE(optimizer->num_states(), kMaxStates) << entry.name;
  }
}

TEST(OptimizerTable, IsWhatTheseTestsGoThrough) {
  // muon_test.cpp tests it: its step is no pass over one parameter.
  std::set<std::string> tested = {"muon"};
  for (const reference::Rule& rule : rules_under_test()) tested.insert(rule.type);
  for (const std::string& name : optimizer_names()) EXPECT_TRUE(tested.contains(name)) << name;
}

TEST(MakeOptimizer, TakesEitherSpelling) {
  for (const std::string_view name : {"accum_adamw", "accum-adamw", "Accum_AdamW"}) {
    EXPECT_EQ(make_optimizer(name)->num_states(), 3) << name;
  }
  EXPECT_EQ(make_optimizer("SGD")->num_states(), 0);
}

TEST(MakeOptimizer, SuggestsANameForAMistypedOne) {
  const std::string what = optimizer_refusal("acum_adamw");
  EXPECT_TRUE(contains(what, "acum_adamw (did you mean accum_adamw?)")) << what;
  for (const std::string& name : optimizer_names()) EXPECT_TRUE(contains(what, name)) << what;
  const std::string strange = optimizer_refusal("shampoo");
  EXPECT_FALSE(strange.empty());
  EXPECT_FALSE(contains(strange, "did you mean")) << strange;
}

TEST(MakeOptimizer, RefusesWrongOptionsByName) {
  struct Case {
    std::string_view optimizer, options, key;
  };
  const std::vector<Case> cases = {
      {"adam", "betas: [0.9, 1.0]", "betas"},
      {"adamw", "betas: [-0.1, 0.9]", "betas"},
      {"adam", "betas: [0.9]", "betas"},
      {"adam", "betas: 0.9", "betas"},
      {"adamw", "eps: -1e-8", "eps"},
      {"accum_adam", "betas: [1.5, 0.9]", "betas"},
      {"accum_adam", "accum_iter: 0", "accum_iter"},
      {"accum_adamw", "accum_iter: -4", "accum_iter"},
      {"accum_adamw", "accum_iter: 2.5", "accum_iter"},
      {"qadam", "warmup: 0", "warmup"},
      {"lion", "betas: [0.9, 1.0]", "betas"},
      {"sgd", "momentum: 1.0", "momentum"},
      {"muon", "momentum: 1.0", "momentum"},
      {"muon", "ns_steps: 0", "ns_steps"},
      {"muon", "adjust_lr: never", "adjust_lr"},
      {"muon", "precision: int8", "precision"},
      {"sgd", "momentum: -0.5", "momentum"},
      {"sgd", "nesterov: true", "nesterov"},
      {"sgd", "momentum: 0.0, nesterov: true", "nesterov"},
      {"sgd", "momentum: 0.9, nesterov: maybe", "nesterov"},
  };
  for (const auto& [optimizer, options, key] : cases) {
    const std::string what = optimizer_refusal(optimizer, options);
    EXPECT_TRUE(contains(what, key)) << optimizer << " " << options << ": " << what;
    EXPECT_TRUE(contains(what, "allowed")) << optimizer << " " << options << ": " << what;
  }
}

TEST(MakeOptimizer, LeavesUnknownOptionsToTheCaller) {
  const Options options = Options::parse("betas: [0.9, 0.99], beta3: 1");
  EXPECT_NO_THROW((void)make_optimizer("adam", options));
  EXPECT_THROW(options.reject_unknown(), ConfigError);
}

TEST(QAdam, LeavesItsSecondMomentAloneAfterTheWarmUp) {
  const auto qadam = make_optimizer("qadam", Options::parse("warmup: 3"));
  EXPECT_EQ(qadam->least_traffic(3, DType::kFloat32).bytes(), 32);
  EXPECT_EQ(qadam->least_traffic(4, DType::kFloat32).bytes(), 28);
  ASSERT_TRUE(qadam->frozen_moments());
  EXPECT_EQ(qadam->frozen_moments()->warmup, 3);
  EXPECT_EQ(qadam->frozen_moments()->beta1, 0.9);
  EXPECT_FALSE(make_optimizer("adam")->frozen_moments());
}

TEST(Lion, ReadsAndWritesOneState) {
  const auto lion = make_optimizer("lion");
  EXPECT_EQ(lion->state_names().size(), 1U);
  EXPECT_EQ(lion->least_traffic(1, DType::kFloat32).bytes(), 24);
}

TEST(ScheduleTable, HasWholeRows) {
  for (const ScheduleEntry& entry : schedule_table()) {
    EXPECT_FALSE(entry.summary.empty()) << entry.name;
    EXPECT_EQ(make_schedule(entry.name, {.lr = 0.5, .total_steps = 10})->lr(0), 0.5) << entry.name;
  }
  EXPECT_EQ(schedule_names(),
            (std::vector<std::string>{"constant", "cosine_with_warmup", "step", "linear"}));
}

TEST(MakeSchedule, TakesEitherSpelling) {
  for (const std::string_view name : {"cosine_with_warmup", "cosine-with-warmup"}) {
    EXPECT_EQ(make_schedule(name, {.lr = 2.0})->lr(0), 2.0) << name;
  }
}

TEST(MakeSchedule, SuggestsANameForAMistypedOne) {
  const std::string what = schedule_refusal("linaer");
  EXPECT_TRUE(contains(what, "did you mean linear?")) << what;
  for (const std::string& name : schedule_names()) EXPECT_TRUE(contains(what, name)) << what;
}

TEST(MakeSchedule, RefusesWrongOptionsByName) {
  struct Case {
    std::string_view schedule, options, key;
  };
  const std::vector<Case> cases = {
      {"cosine_with_warmup", "t_warmup: -1", "t_warmup"},
      {"cosine_with_warmup", "t_max: 0", "t_max"},
      {"cosine_with_warmup", "eta_min: -1e-3", "eta_min"},
      {"cosine_with_warmup", "warmup_decay: 1.5", "warmup_decay"},
      {"step", "step_size: 0", "step_size"},
      {"step", "gamma: 0", "gamma"},
      {"linear", "t_max: -5", "t_max"},
      {"linear", "end_factor: 2", "end_factor"},
  };
  for (const auto& [schedule, options, key] : cases) {
    const std::string what = schedule_refusal(schedule, options);
    EXPECT_TRUE(contains(what, key)) << schedule << " " << options << ": " << what;
  }
}

}  // namespace
}  // namespace gossamer
