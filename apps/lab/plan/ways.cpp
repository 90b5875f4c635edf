#include "apps/lab/plan/ways.hpp"

#include <array>

namespace gossamer::apps {
namespace {

/// The gap of gossip, and of sums over all ranks in every step, plain and under topk: 0.056 to
/// 0.067.
constexpr double kEveryStepGap = 0.063;

/// What an average adds that travels for a quarter of its period: 0.04 to 0.10 in pairs and of all
/// ranks, every 10 and 40 steps. Under topk we have measured every 2 steps alone, late by 2: 0.07.
constexpr double kTravelGap = 0.07;

// Gossip whose steps end with mixed models, with a recipe for all-reduce:
// docs/measurements/recipes.md.
constexpr std::string_view kAtEnd = "overlap: false";
constexpr MeasuredGaps kAtEndGaps{0.007};
constexpr MeasuredGaps kAtEndInt8Gaps{0.028};

constexpr std::string_view kPairs = "kind: noloco, momentum: 0.5, lr: 0.7";
constexpr std::string_view kAll = "kind: diloco, momentum: 0.5, lr: 0.7";
// Moves that lack most elements go without momentum.
constexpr std::string_view kSparse = "kind: diloco, momentum: 0, lr: 1";
// Codecs have lost nothing that seeds do not: int8 in models, int8 and int4 in gradients.
constexpr MeasuredGaps kEveryStepGaps{kEveryStepGap};
constexpr MeasuredGaps kPairGaps{kEveryStepGap, 10, 0.238, 40, 0.450};
constexpr MeasuredGaps kAllGaps{kEveryStepGap, 10, 0.189, 40, 0.366};
constexpr MeasuredGaps kSparseGaps{kEveryStepGap, 2, 0.077, 10, 0.380};

constexpr Way with_recipe(Way way) {
  way.takes_recipe = true;
  return way;
}

constexpr std::array kWays = {
    Way{"all-reduce", "allreduce", "", "fp32"},
    Way{"all-reduce", "allreduce", "", "int8"},
    Way{"all-reduce", "allreduce", "", "int4"},
    Way{"gossip", "gossip", "", "fp32", kEveryStepGaps},
    Way{"gossip", "gossip", "", "int8", kEveryStepGaps},
    with_recipe({"gossip without overlap", "gossip", kAtEnd, "fp32", kAtEndGaps}),
    with_recipe({"gossip without overlap", "gossip", kAtEnd, "int8", kAtEndInt8Gaps}),
    Way{"outer in pairs", "outer", kPairs, "fp32", kPairGaps},
    Way{"outer in pairs", "outer", kPairs, "int8", kPairGaps},
    Way{"outer in pairs", "outer", kPairs, "int8", kPairGaps, true},
    Way{"outer of all", "outer", kAll, "fp32", kAllGaps},
    Way{"outer of all", "outer", kAll, "int8", kAllGaps},
    Way{"outer of all", "outer", kAll, "int8", kAllGaps, true},
    Way{"outer of all", "outer", kSparse, "topk", kSparseGaps, false, 1},
    Way{"outer of all", "outer", kSparse, "topk", kSparseGaps, true},
};

constexpr std::array<std::string_view, 5> kMeasuredTopologies = {
    "base-k", "one-peer-exp", "ring", "alternating-exp-ring", "complete"};
// The rounds to 1/1000 that a ring of 16 ranks needs.
constexpr std::int64_t kMostMeasuredRounds = 89;

}  // namespace

double Way::gap(std::int64_t every) const { return gaps.at(every) + (travels ? kTravelGap : 0.0); }

std::span<const Way> way_table() { return kWays; }

bool is_measured_for_gossip(std::string_view topology, const std::optional<RoundCount>& rounds) {
  return rounds && rounds->rounds <= kMostMeasuredRounds &&
         std::ranges::find(kMeasuredTopologies, topology) != kMeasuredTopologies.end();
}

}  // namespace gossamer::apps
