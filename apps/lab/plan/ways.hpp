#pragma once
// The ways to exchange that a plan compares when the user names none, and what each costs. The
// rarer and the smaller the messages, the shorter the steps, and the more accuracy is lost at equal
// steps. docs/guide/far_apart.md has the measurements. They come from one small model with averages
// every 1 to 40 steps.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "topology/spectrum.hpp"

namespace gossamer::apps {

/// How far a rank that trains alone ends above the loss of all-reduce. We expect exchanges so rare
/// that they reach this gap to help no more than none.
inline constexpr double kAloneGap = 0.518;

/// The loss above that of all-reduce after equally many steps, measured with up to three periods.
struct MeasuredGaps {
  /// The gap of an exchange in every step.
  double first = 0.0;
  double every = 0.0;
  double gap = 0.0;
  double rarer = 0.0;
  double rarer_gap = 0.0;

  /// Between the periods, and beyond them, gaps grow with the logarithm of the period.
  [[nodiscard]] double at(std::int64_t period) const {
    if (period == 1) return first;
    const auto steps = static_cast<double>(period);
    if (steps < every) return first + (gap - first) * std::log(steps) / std::log(every);
    return gap + (rarer_gap - gap) * std::log(steps / every) / std::log(rarer / every);
  }
};

struct Way {
  /// The name in tables, such as `outer in pairs`.
  std::string_view name;
  std::string_view algorithm;
  /// The algorithm's options, without `every` and `late`.
  std::string_view options;
  std::string_view codec;
  MeasuredGaps gaps = {};
  /// An average travels for a quarter of its period.
  bool travels = false;
  /// The shortest period, in steps, of a way with `is_rare()`.
  std::int64_t least_every = 2;
  /// The gaps are those of runs with `train.recipe: allreduce`.
  bool takes_recipe = false;

  /// False: an exchange in every step.
  [[nodiscard]] bool is_rare() const { return algorithm == "outer"; }
  [[nodiscard]] std::int64_t late(std::int64_t every) const {
    return travels ? std::max<std::int64_t>(1, every / 4) : 1;
  }
  /// The expected gap of exchanges every so many steps.
  [[nodiscard]] double gap(std::int64_t every) const;
};

/// The plainest first.
std::span<const Way> way_table();

/// Whether the gap of gossip holds for a topology. We have trained on five topologies, and no
/// denser one was better than a ring of up to 16 ranks. `rounds` is the number of rounds to a
/// thousandth of the ranks' distance from their mean.
bool is_measured_for_gossip(std::string_view topology, const std::optional<RoundCount>& rounds);

}  // namespace gossamer::apps
