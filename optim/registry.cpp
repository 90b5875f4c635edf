#include "optim/registry.hpp"

#include <array>

#include "optim/rules/accum_adam.hpp"
#include "optim/rules/adam.hpp"
#include "optim/rules/extra.hpp"
#include "optim/rules/lion.hpp"
#include "optim/rules/mixing_adam.hpp"
#include "optim/rules/muon.hpp"
#include "optim/rules/qadam.hpp"
#include "optim/rules/qg_sgd.hpp"
#include "optim/rules/sgd.hpp"
#include "optim/rules/tracker.hpp"
#include "optim/schedule_options.hpp"
#include "optim/sweep.hpp"
#include "optim/tracker.hpp"

namespace gossamer {

std::unique_ptr<Schedule> make_constant_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_cosine_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_step_schedule(const ScheduleBase& base, const Options& options);
std::unique_ptr<Schedule> make_linear_schedule(const ScheduleBase& base, const Options& options);

namespace {

constexpr NamedOption kInnerRule{"rule", "the optimizer inside", {.fallback = "sgd"}};
constexpr ChoiceOption kInnerName{"name", "the optimizer inside"};

constexpr std::array kSgd = option_list(kSgdMomentum, kSgdNesterov);
constexpr std::array kAdam = option_list(kMomentBetas, kMomentEps, kMixingPull);
constexpr std::array kAccumAdam = option_list(kMomentBetas, kMomentEps, kAccumIter);
constexpr std::array kQAdam = option_list(kMomentBetas, kMomentEps, kAdamUpdates);
constexpr std::array kLion = option_list(kLionBetas);
constexpr std::array kMuon =
    option_list(kMuonMomentum, kMuonNesterov, kMuonScale, kMuonSteps, kMuonEps, kMuonPrecision);
constexpr std::array kQuasiGlobal = option_list(kBufferWeight, kOldBufferWeight);
constexpr std::array kExtra = option_list(kInnerRule);

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
template <Decay kDecay>
std::unique_ptr<Optimizer> make_adam(const Options& options) {
  const double pull = options.read(kMixingPull);
  if (pull > 0.0) return build_mixing_adam<kDecay>(options, pull, BuildPlain{});
  return build_adam<kDecay>(options, BuildPlain{});
}
template <Decay kDecay>
std::unique_ptr<Optimizer> make_adam_in_extra(const Options& options) {
  return build_adam<kDecay>(options, BuildExtra{});
}
template <class Build, Decay kDecay>
std::unique_ptr<Optimizer> make_accum_adam(const Options& options) {
  return build_accum_adam<kDecay>(options, Build{});
}
std::unique_ptr<Optimizer> make_qadam(const Options& options) {
  return build_qadam(options, BuildPlain{});
}
std::unique_ptr<Optimizer> make_lion(const Options& options) {
  return build_lion(options, BuildPlain{});
}
std::unique_ptr<Optimizer> make_qg_sgd(const Options& options) {
  return build_qg_sgd(options, BuildPlain{});
}
std::unique_ptr<Optimizer> make_extra(const Options& options, std::span<const OptimizerEntry> own);

constexpr std::array kOptimizers = {
    OptimizerEntry{.name = "sgd",
                   .summary = "gradient descent with momentum or Nesterov momentum",
                   .options = kSgd,
                   .make = make_sgd<BuildPlain>,
                   .make_in_extra = make_sgd<BuildExtra>},
    OptimizerEntry{.name = "adam",
                   .summary = "Adam, weight decay added to the gradient",
                   .options = kAdam,
                   .make = make_adam<Decay::kCoupled>,
                   .make_in_extra = make_adam_in_extra<Decay::kCoupled>},
    OptimizerEntry{.name = "adamw",
                   .summary = "Adam, decoupled weight decay",
                   .options = kAdam,
                   .make = make_adam<Decay::kDecoupled>,
                   .make_in_extra = make_adam_in_extra<Decay::kDecoupled>},
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
    OptimizerEntry{.name = "lion",
                   .summary = "steps of one size, by the sign of the momentum (Lion)",
                   .options = kLion,
                   .make = make_lion},
    OptimizerEntry{.name = "muon",
                   .summary = "orthogonal steps of matrices, by Newton-Schulz (Muon); groups with "
                              "another optimizer take the other parameters",
                   .options = kMuon,
                   .make = build_muon},
    OptimizerEntry{.name = "qg_sgd",
                   .summary = "gradient descent with quasi-global momentum, for gossip",
                   .options = kQuasiGlobal,
                   .make = make_qg_sgd},
    OptimizerEntry{.name = "extra",
                   .summary = "EXTRA's correction of gossip's drift, around another optimizer",
                   .options = kExtra,
                   .make_around = make_extra},
};

std::unique_ptr<Optimizer> make_extra(const Options& options, std::span<const OptimizerEntry> own) {
  const auto rows = with_own(optimizer_table(), own);
  std::vector<std::string> names;
  for (const OptimizerEntry& entry : rows) {
    if (entry.make_in_extra != nullptr) names.emplace_back(entry.name);
  }
  const Options inner = options.read(kInnerRule);
  const std::string name = inner.read(kInnerName, kInnerRule.rule.fallback, names);
  return row_of(rows, "optimizer", name).make_in_extra(inner);
}

constexpr std::array kSchedules = {
    ScheduleEntry{"constant", "the same in every step", {}, make_constant_schedule},
    ScheduleEntry{"cosine_with_warmup", "linear warm-up, then half a cosine to eta_min",
                  cosine::kOptions, make_cosine_schedule},
    ScheduleEntry{"step", "times gamma after every step_size steps", step::kOptions,
                  make_step_schedule},
    ScheduleEntry{"linear", "linear warm-up, then a line down to end_factor", linear::kOptions,
                  make_linear_schedule},
};

}  // namespace

std::span<const OptimizerEntry> optimizer_table() { return kOptimizers; }
std::vector<std::string> optimizer_names(std::span<const OptimizerEntry> own) {
  return names_of(with_own(optimizer_table(), own));
}

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const Options& options,
                                          std::span<const OptimizerEntry> own) {
  return row_of(with_own(optimizer_table(), own), "optimizer", name).build(options, own);
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
