#pragma once
// The options of the topologies, which their files read and their rows list.

#include "base/option.hpp"
#include "topology/topology.hpp"

namespace gossamer {

namespace base_k {
inline constexpr IntegerOption kPeers{
    "k",
    "most peers of a rank in a round, which averages in groups of up to k + 1 ranks",
    {.fallback = 1, .min = 1, .max = 1000}};
inline constexpr std::array kOptions = option_list(kPeers);
}  // namespace base_k

namespace random_matching {
inline constexpr IntegerOption kSeed{"seed", "which pairs are drawn", {.fallback = 0, .min = 0}};
inline constexpr std::array kOptions = option_list(kSeed);
}  // namespace random_matching

namespace hierarchical {
inline constexpr NamedOption kLeaders{
    "leaders", "the topology between nodes", {.fallback = "ring"}};
inline constexpr IntegerOption kLeadersEvery{"leaders_every",
                                             "nodes mix in every H-th round only",
                                             {.fallback = 1, .min = 1, .max = 1'000'000}};
inline constexpr std::array kOptions = option_list(kLeaders, kLeadersEvery);
}  // namespace hierarchical

namespace local_sgd {
inline constexpr IntegerOption kSitOut{"sit_out",
                                       "rounds without communication before each average",
                                       {.fallback = 7, .min = 0, .max = 1'000'000}};
inline constexpr std::array kOptions = option_list(kSitOut);
}  // namespace local_sgd

namespace lattice {
inline constexpr IntegerOption kRows{"rows",
                                     "number of rows, a divisor of the number of ranks",
                                     {.fallback = 0, .min = 0},
                                     "as nearly square as can be"};
inline constexpr std::array kOptions = option_list(kRows);
}  // namespace lattice

namespace from_file {
inline constexpr PathOption kPath{"path",
                                  "the YAML or JSON file; docs/guide/topologies.md has its format"};
inline constexpr std::array kOptions = option_list(kPath);
}  // namespace from_file

namespace every {
inline constexpr NamedOption kBase{"base", "the topology"};
inline constexpr IntegerOption kPeriod{"period", "H", {.min = 1, .max = 1'000'000}};
inline constexpr std::array kOptions = option_list(kBase, kPeriod);
}  // namespace every

namespace phases {
inline constexpr NamedOption kTopology{"topology", "of a phase"};
inline constexpr IntegerOption kUntil{
    "until",
    "the first round of the next phase, more than that of the phase before",
    {.min = 1, .max = kManyRounds - 1},
    "but in the last phase"};
inline constexpr std::array kOptions = option_list(kTopology, kUntil);
}  // namespace phases

}  // namespace gossamer
