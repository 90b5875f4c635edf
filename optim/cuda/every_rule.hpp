#pragma once
// The rules that the sweep is compiled for: the rules of optim/registry.cpp. A rule that is missing
// here is an undefined reference when a program is linked.

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

// clang-format off
/// Writes `apply(Rule)` for every rule.
#define GOSSAMER_FOR_EVERY_RULE(apply)             \
  apply(PlainRule)                                 \
  apply(MomentumRule<false>)                       \
  apply(MomentumRule<true>)                        \
  apply(AdamRule<Decay::kCoupled>)                 \
  apply(AdamRule<Decay::kDecoupled>)               \
  apply(MixingAdamRule<Decay::kCoupled>)           \
  apply(MixingAdamRule<Decay::kDecoupled>)         \
  apply(AccumAdamRule<Decay::kCoupled>)            \
  apply(AccumAdamRule<Decay::kDecoupled>)          \
  apply(QAdamRule)                                 \
  apply(LionRule)                                  \
  apply(MuonMomentumRule)                          \
  apply(MuonStepRule)                              \
  apply(QuasiGlobalRule)                           \
  apply(TrackerRule)                               \
  apply(ExtraRule<PlainRule>)                      \
  apply(ExtraRule<MomentumRule<false>>)            \
  apply(ExtraRule<MomentumRule<true>>)             \
  apply(ExtraRule<AdamRule<Decay::kCoupled>>)      \
  apply(ExtraRule<AdamRule<Decay::kDecoupled>>)    \
  apply(ExtraRule<AccumAdamRule<Decay::kCoupled>>) \
  apply(ExtraRule<AccumAdamRule<Decay::kDecoupled>>)
// clang-format on
