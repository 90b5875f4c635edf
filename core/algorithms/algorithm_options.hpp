#pragma once
// The options of the algorithms, which their files read and their rows list.

#include "base/option.hpp"

namespace gossamer {

namespace gossip {
inline constexpr FlagOption kOverlap{
    "overlap",
    "the exchange has the whole next step; false: the next step begins with mixed parameters",
    {.fallback = true}};
inline constexpr IntegerOption kShareMoments{
    "share_moments",
    "steps between two averages of Adam's second moments over all ranks, 0: never",
    {.fallback = 0, .min = 0, .max = 1'000'000}};
inline constexpr IntegerOption kShareMomentum{
    "share_momentum",
    "steps between two averages of first moments, or of the momentum of sgd, lion and muon, over "
    "all ranks, a multiple of share_moments; 0: never",
    {.fallback = 0, .min = 0, .max = 1'000'000}};
inline constexpr std::array kOptions = option_list(kOverlap, kShareMoments, kShareMomentum);
}  // namespace gossip

namespace allreduce {
inline constexpr FlagOption kOverlap{
    "overlap", "sums travel during the backward pass", {.fallback = true}};
inline constexpr IntegerOption kDelay{"delay",
                                      "1: updates use the mean gradient of the step before",
                                      {.fallback = 0, .min = 0, .max = 1}};
inline constexpr FlagOption kAverage{
    "average", "updates use the mean of all gradients, else their sum", {.fallback = true}};
inline constexpr ChoiceOption kSends{
    "sends",
    "what the ranks sum; momentum: after the warm-up of the optimizer qadam",
    {.words = {"gradients", "momentum"}, .fallback = "gradients"}};
inline constexpr std::array kOptions = option_list(kOverlap, kDelay, kAverage, kSends);
}  // namespace allreduce

namespace momentum_tracking {
inline constexpr NumberOption kBeta{"beta",
                                    "part of the momentum that stays",
                                    {.fallback = 0.9, .min = 0.0, .max = 1.0, .below_max = true}};
inline constexpr std::array kOptions = option_list(kBeta);
}  // namespace momentum_tracking

namespace choco {
inline constexpr NumberOption kFraction{
    "fraction",
    "the share of the elements that a message holds",
    {.fallback = 0.05, .min = 0.0, .max = 1.0, .above_min = true}};
inline constexpr NumberOption kConsensusStep{
    "consensus_step",
    "the share of a full mixing step",
    {.fallback = 0.1, .min = 0.0, .max = 1.0, .above_min = true},
    "twice the fraction, at most 0.5"};
inline constexpr std::array kOptions = option_list(kFraction, kConsensusStep);
}  // namespace choco

namespace outer {
inline constexpr IntegerOption kEvery{"every",
                                      "steps between two averages of all models",
                                      {.fallback = 8, .min = 1, .max = 1'000'000}};
inline constexpr ChoiceOption kKind{
    "kind",
    "how an average moves the model",
    {.words = {"slowmo", "diloco", "noloco", "gasloc"}, .fallback = "slowmo"}};
inline constexpr ChoiceOption kRounds{
    "rounds",
    "who averages: all ranks, or those that a round of the topology joins",
    {.words = {"all", "topology"}, .fallback = "all"},
    "topology for noloco and gasloc"};
inline constexpr NumberOption kLr{"lr",
                                  "outer learning rate",
                                  {.fallback = 1.0, .min = 0.0, .max = 1e6, .above_min = true},
                                  "1 for slowmo, else 0.7"};
inline constexpr NumberOption kMomentum{
    "momentum", "outer momentum", {.fallback = 0.5, .min = 0.0, .max = 1.0, .below_max = true}};
inline constexpr FlagOption kStreaming{"streaming", "buckets take turns within a cycle"};
inline constexpr IntegerOption kLate{"late",
                                     "steps that an average may take, at most every",
                                     {.fallback = 1, .min = 1, .max = 1'000'000}};
inline constexpr FlagOption kOverlap{
    "overlap",
    "an average has the whole next step, or more; false: the next step begins with the average",
    {.fallback = true}};
inline constexpr NumberOption kBlend{
    "blend",
    "the part of a rank's own model that stays when a late average arrives",
    {.fallback = 0.0, .min = 0.0, .max = 1.0, .below_max = true},
    "0.5 if late is above 1"};
inline constexpr NumberOption kErrorDecay{
    "error_decay",
    "the part of what the codec has left out that stays until the next average of all ranks",
    {.fallback = 1.0, .min = 0.0, .max = 1.0}};
inline constexpr IntegerOption kShareMoments{
    "share_moments",
    "steps between two averages of Adam's second moments over the ranks that average models, a "
    "multiple of every; 0: never",
    {.fallback = 0, .min = 0, .max = 1'000'000}};
inline constexpr IntegerOption kShareMomentum{
    "share_momentum",
    "steps between two averages of first moments, or of the momentum of sgd, lion and muon, over "
    "the ranks that average models, a multiple of share_moments; 0: never",
    {.fallback = 0, .min = 0, .max = 1'000'000}};
inline constexpr std::array kOptions =
    option_list(kEvery, kKind, kRounds, kLr, kMomentum, kStreaming, kOverlap, kLate, kBlend,
                kErrorDecay, kShareMoments, kShareMomentum);
}  // namespace outer

namespace late_average {
inline constexpr IntegerOption kEvery = outer::kEvery;
inline constexpr IntegerOption kLate = outer::kLate;
inline constexpr IntegerOption kWarmup{
    "warmup", "first steps, in which updates use the mean gradient", {.fallback = 0, .min = 0}};
inline constexpr std::array kOptions = option_list(kEvery, kLate, kWarmup);
}  // namespace late_average

namespace node_gossip {
inline constexpr ChoiceOption kShard{
    "shard",
    "optimizer: a rank has the optimizer's states of its own shard alone",
    {.words = {"none", "optimizer"}, .fallback = "none"}};
inline constexpr std::array kOptions = option_list(kShard);
}  // namespace node_gossip

namespace async_gossip {
inline constexpr ChoiceOption kMode{
    "mode",
    "bounded: a rank waits for a rank that it has not heard from for max_staleness steps",
    {.words = {"bounded", "asynchronous"}, .fallback = "bounded"}};
inline constexpr IntegerOption kMaxStaleness{
    "max_staleness",
    "a rank waits for messages older than so many of its steps",
    {.fallback = 8, .min = 1, .max = 1'000'000}};
inline constexpr FlagOption kRateCorrection{"rate_correction",
                                            "the updates of slow ranks count for more"};
inline constexpr std::array kOptions = option_list(kMode, kMaxStaleness, kRateCorrection);
}  // namespace async_gossip

}  // namespace gossamer
