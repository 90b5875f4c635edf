#pragma once
// Figure 6 of Wang et al., "From Promise to Practice: Realizing High-performance Decentralized
// Training", ICLR 2025: milliseconds per iteration of a transformer of 65 million parameters on two
// clusters of nodes with four GPUs each, and the constants with which the model comes close.
// docs/design/iteration-model.md discusses both.

#include "test/apps/lab/plan/predictions.hpp"

#include <array>

#include "apps/lab/plan/iteration_model.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {

enum class Cluster { kA40, kA100 };

struct Figure6Row {
  Cluster cluster = Cluster::kA40;
  int num_ranks = 8;
  /// Milliseconds, as measured by the authors.
  double all_reduce = 0.0;
  double one_peer_exp = 0.0;
  double alternating_exp_ring = 0.0;
  /// The row was used to choose the constants.
  bool is_fitted = false;
};

inline constexpr std::array kFigure6 = {Figure6Row{Cluster::kA40, 8, 166.1, 122.8, 122.0, true},
                                        Figure6Row{Cluster::kA40, 16, 195.5, 97.4, 78.9, false},
                                        Figure6Row{Cluster::kA40, 32, 188.5, 110.8, 67.9, true},
                                        Figure6Row{Cluster::kA100, 8, 73.0, 63.4, 61.7, true},
                                        Figure6Row{Cluster::kA100, 16, 54.8, 46.8, 45.8, false},
                                        Figure6Row{Cluster::kA100, 32, 51.5, 44.7, 43.7, true}};

/// What was fitted, on the rows of 8 and 32 GPUs: the least sum of squares of the logarithms of
/// predicted / measured, of the three times and of one-peer-exp / alternating-exp-ring. First the
/// last three on A100, then the first two on A40 (FitsItsConstants in figure_6_test.cpp).
struct Figure6Constants {
  /// Milliseconds of forward and backward: fixed + scaled * 8 / (number of GPUs), because the
  /// batch of all GPUs together stays the same.
  double a40_fixed = 47.1;
  double a40_scaled = 71.6;
  double a100_fixed = 34.2;
  double a100_scaled = 27.9;
  /// Picoseconds of computing that a byte between nodes costs.
  double lost = 19.5;
};

// What was not fitted. Between nodes: what the networks are called, and a latency of few
// microseconds. Within: about PCIe 4.0 x16 (A40), NVLink (A100).
inline constexpr double kParameters = 65e6;
inline constexpr double kBetweenLatency = 5e-6;
inline constexpr LinkSpeed kWithinA40{.latency_s = 5e-6, .bandwidth = 2e10};
inline constexpr LinkSpeed kWithinA100{.latency_s = 5e-6, .bandwidth = 2e11};
// Bytes per parameter. Four for gossip are ruled out: at 16 A40, one-peer-exp would move 2080 MB
// through each node's 3.125 GB/s every 4 iterations, 166 ms for each, where 97.4 were measured.
inline constexpr double kGossipWidth = 2.0;
inline constexpr double kGradientWidth = 4.0;
inline constexpr double kBuckets = 10.0;

inline StepModel figure_6_model(const Figure6Row& row, const Figure6Constants& constants,
                                double width) {
  const bool a40 = row.cluster == Cluster::kA40;
  const double shrink = 8.0 / row.num_ranks;
  const double compute_ms = a40 ? constants.a40_fixed + constants.a40_scaled * shrink
                                : constants.a100_fixed + constants.a100_scaled * shrink;
  const double bytes = kParameters * width;
  return {.world = {.size = row.num_ranks, .node_size = 4},
          .links = {.within = a40 ? kWithinA40 : kWithinA100,
                    .between = LinkSpeed{.latency_s = kBetweenLatency,
                                         .bandwidth = a40 ? 25e9 / 8.0 : 100e9 / 8.0,
                                         .lost_s_per_byte = 1e-12 * constants.lost}},
          .compute_s = 1e-3 * compute_ms,
          .bucket_bytes = split_into_buckets(bytes, bytes / kBuckets),
          // Whole periods of all three.
          .num_steps = 120,
          .num_warmup = 12};
}

/// The row as the model has it.
inline Figure6Row predict_row(Figure6Row row, const Figure6Constants& constants) {
  const StepModel gossip = figure_6_model(row, constants, kGossipWidth);
  const auto predicted_ms = [&](const char* topology) {
    return 1e3 * predict_gossip(gossip, *make_topology(topology, gossip.world)).step_s;
  };
  row.all_reduce = 1e3 * predict_all_reduce(figure_6_model(row, constants, kGradientWidth)).step_s;
  row.one_peer_exp = predicted_ms("one-peer-exp");
  row.alternating_exp_ring = predicted_ms("alternating-exp-ring");
  return row;
}

}  // namespace gossamer::apps
