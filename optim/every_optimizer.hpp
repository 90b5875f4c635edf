#pragma once
// The list of the library's optimizers. The registry makes its table of it, and GPUs their kernels.
//
// A row is a type with
//
//   static constexpr std::string_view kName, kSummary;
//   static constexpr std::array kOptions = option_list(...);  // what make() reads
//   using Rules = std::tuple<...>;                            // the rules that make() may use
//   template <class Build>                                    // build(rule): the rule's optimizer
//   static std::unique_ptr<Optimizer> make(const Options& options, const Build& build);

#include <tuple>
#include <utility>

#include "optim/rules/accum_adam.hpp"
#include "optim/rules/extra.hpp"
#include "optim/rules/lion.hpp"
#include "optim/rules/mixing_adam.hpp"
#include "optim/rules/muon.hpp"
#include "optim/rules/qadam.hpp"
#include "optim/rules/qg_sgd.hpp"
#include "optim/rules/sgd.hpp"
#include "optim/rules/tracker.hpp"

namespace gossamer {

using EveryOptimizer =
    std::tuple<SgdRow, AdamRow<Decay::kCoupled>, AdamRow<Decay::kDecoupled>,
               AccumAdamRow<Decay::kCoupled>, AccumAdamRow<Decay::kDecoupled>, QAdamRow, LionRow,
               MuonRow, QuasiGlobalRow,
               ExtraRow<SgdRow, AdamRow<Decay::kCoupled>, AdamRow<Decay::kDecoupled>,
                        AccumAdamRow<Decay::kCoupled>, AccumAdamRow<Decay::kDecoupled>>>;

template <class... Rows>
auto rules_of(const std::tuple<Rows...>& /*rows*/) {
  return std::tuple_cat(typename Rows::Rules()..., std::tuple<TrackerRule>());
}
/// A tuple of all rules that the library makes optimizers of: these run on GPUs.
using EveryRule = decltype(rules_of(EveryOptimizer()));

}  // namespace gossamer
