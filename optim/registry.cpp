#include "optim/registry.hpp"

#include <array>

#include "optim/rules/accum_adam.hpp"
#include "optim/rules/adam.hpp"
#include "optim/rules/extra.hpp"
#include "optim/rules/qadam.hpp"
#include "optim/rules/qg_sgd.hpp"
#include "optim/rules/sgd.hpp"
#include "optim/rules/tracker.hpp"
#include "optim/sweep.hpp"
#include "optim/tracker.hpp"

namespace gossamer {

std::unique_ptr<Schedule> make_constant_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_cosine_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_step_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_linear_schedule(const ScheduleBase& base, const Options& options);

namespace {

constexpr std::array kSgd = {
    OptionEntry{"momentum",
                "part of the last step that is taken again; a number >= 0 and < 1, default 0"},
    OptionEntry{"nesterov", "Nesterov's variant, needs momentum; true or false, default false"},
};

constexpr OptionEntry kBetas = {
    "betas",
    "decay of the two moments; a list of two, each a number >= 0 and < 1, default [0.9, 0.999]"};
constexpr OptionEntry kEps = {
    "eps", "added to the root of the second moment; a number >= 0, default 1e-08"};
constexpr std::array kAdam = {kBetas, kEps};
constexpr std::array kAccumAdam = {
    kBetas,
    kEps,
    OptionEntry{"accum_iter",
                "steps per update of the moments; an integer from 1 to 1000000, default 4"},
};

constexpr std::array kQAdam = {
    kBetas,
    kEps,
    OptionEntry{"warmup",
                "first updates, which are Adam's; then the second moment stands still; an integer "
                ">= 1, default 100"},
};
constexpr std::array kQuasiGlobal = {
    OptionEntry{"beta", "weight of the buffer in a step; a number >= 0 and < 1, default 0.9"},
    OptionEntry{"mu",
                "weight of the old buffer in the new one; a number >= 0 and < 1, default 0.9: that "
                "of beta"},
};
constexpr std::array kExtra = {
    OptionEntry{"rule",
                "the optimizer inside; a name, or a section of key: value lines, default sgd"},
};

constexpr OptionEntry kWarmupSteps = {"t_warmup",
                                      "steps of linear warm-up; an integer >= 0, default 0"};
constexpr OptionEntry kWarmupStart = {
    "warmup_decay",
    "the warm-up begins at this times the learning rate; a number >= 0 and <= 1, default 0.01"};
constexpr OptionEntry kMaxSteps = {
    "t_max", "steps after the warm-up; an integer >= 1, default null: the rest of the run"};
constexpr std::array kCosine = {
    kWarmupSteps,
    kWarmupStart,
    kMaxSteps,
    OptionEntry{"eta_min", "the learning rate at t_max; a number >= 0, default 0"},
};
constexpr std::array kStep = {
    OptionEntry{"step_size", "steps between two reductions; an integer >= 1, default 1000"},
    OptionEntry{"gamma", "factor of each reduction; a number > 0, default 0.1"},
};
constexpr std::array kLinear = {
    kWarmupSteps,
    kWarmupStart,
    kMaxSteps,
    OptionEntry{"end_factor",
                "at t_max the learning rate is this times the first; a number >= 0 and <= 1, "
                "default 0"},
};

/// Turn a rule into an optimizer: BuildPlain as it is, BuildExtra inside EXTRA.
struct BuildPlain {
  template <class Rule>
  std::unique_ptr<Optimizer> operator()(const Rule& rule) const {
    return make_rule_optimizer(rule);
  }
};
struct BuildExtra {
  template <class Rule>
  std::unique_ptr<Optimizer> operator()(const Rule& rule) const {
    return make_rule_optimizer(ExtraRule<Rule>{rule});
  }
};

template <class Build>
std::unique_ptr<Optimizer> make_sgd(const Options& options) {
  return build_sgd(options, Build{});
}
template <class Build, Decay kDecay>
std::unique_ptr<Optimizer> make_adam(const Options& options) {
  return build_adam<kDecay>(options, Build{});
}
template <class Build, Decay kDecay>
std::unique_ptr<Optimizer> make_accum_adam(const Options& options) {
  return build_accum_adam<kDecay>(options, Build{});
}
std::unique_ptr<Optimizer> make_qadam(const Options& options) {
  return build_qadam(options, BuildPlain{});
}
std::unique_ptr<Optimizer> make_qg_sgd(const Options& options) {
  return build_qg_sgd(options, BuildPlain{});
}
std::unique_ptr<Optimizer> make_extra(const Options& options);

constexpr std::array kOptimizers = {
    OptimizerEntry{.name = "sgd",
                   .summary = "gradient descent with momentum or Nesterov momentum",
                   .options = kSgd,
                   .make = make_sgd<BuildPlain>,
                   .make_in_extra = make_sgd<BuildExtra>},
    OptimizerEntry{.name = "adam",
                   .summary = "Adam, weight decay added to the gradient",
                   .options = kAdam,
                   .make = make_adam<BuildPlain, Decay::kCoupled>,
                   .make_in_extra = make_adam<BuildExtra, Decay::kCoupled>},
    OptimizerEntry{.name = "adamw",
                   .summary = "Adam, decoupled weight decay",
                   .options = kAdam,
                   .make = make_adam<BuildPlain, Decay::kDecoupled>,
                   .make_in_extra = make_adam<BuildExtra, Decay::kDecoupled>},
    OptimizerEntry{.name = "accum_adam",
                   .summary = "Adam whose moments move once per accum_iter steps",
                   .options = kAccumAdam,
                   .make = make_accum_adam<BuildPlain, Decay::kCoupled>,
                   .make_in_extra = make_accum_adam<BuildExtra, Decay::kCoupled>},
    OptimizerEntry{.name = "accum_adamw",
                   .summary = "the same with decoupled weight decay",
                   .options = kAccumAdam,
                   .make = make_accum_adam<BuildPlain, Decay::kDecoupled>,
                   .make_in_extra = make_accum_adam<BuildExtra, Decay::kDecoupled>},
    OptimizerEntry{.name = "qadam",
                   .summary = "Adam whose second moment stands still after a warm-up, for "
                              "allreduce with sends: momentum",
                   .options = kQAdam,
                   .make = make_qadam},
    OptimizerEntry{.name = "qg_sgd",
                   .summary = "gradient descent with quasi-global momentum, for gossip",
                   .options = kQuasiGlobal,
                   .make = make_qg_sgd},
    OptimizerEntry{.name = "extra",
                   .summary = "EXTRA's correction of gossip's drift, around another optimizer",
                   .options = kExtra,
                   .make = make_extra},
};

std::unique_ptr<Optimizer> make_extra(const Options& options) {
  std::vector<std::string> names;
  for (const OptimizerEntry& entry : kOptimizers) {
    if (entry.make_in_extra != nullptr) names.emplace_back(entry.name);
  }
  const Options inner = options.named_section("rule");
  return row_of(kOptimizers, "optimizer", inner.choice("name", names, "sgd")).make_in_extra(inner);
}

constexpr std::array kSchedules = {
    ScheduleEntry{"constant", "the same in every step", {}, make_constant_schedule},
    ScheduleEntry{"cosine_with_warmup", "linear warm-up, then half a cosine to eta_min", kCosine,
                  make_cosine_schedule},
    ScheduleEntry{"step", "times gamma after every step_size steps", kStep, make_step_schedule},
    ScheduleEntry{"linear", "linear warm-up, then a line down to end_factor", kLinear,
                  make_linear_schedule},
};

}  // namespace

std::span<const OptimizerEntry> optimizer_table() { return kOptimizers; }
std::vector<std::string> optimizer_names() { return names_of(kOptimizers); }

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const Options& options) {
  return row_of(kOptimizers, "optimizer", name).make(options);
}

std::unique_ptr<Optimizer> make_tracker(double beta) {
  return make_rule_optimizer(TrackerRule{beta});
}

std::span<const ScheduleEntry> schedule_table() { return kSchedules; }
std::vector<std::string> schedule_names() { return names_of(kSchedules); }

std::unique_ptr<Schedule> make_schedule(std::string_view name, const ScheduleBase& base,
                                        const Options& options) {
  return row_of(kSchedules, "learning-rate schedule", name).make(base, options);
}

}  // namespace gossamer
