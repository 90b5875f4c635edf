#pragma once
// Predictions of single steps for traffic that a test describes itself: the rounds of a topology,
// or one sum over all ranks. They need no algorithm, so times worked out by hand hold exactly.

#include <cstdint>
#include <unordered_map>

#include "apps/lab/plan/iteration_model.hpp"
#include "apps/lab/plan/traffic.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

/// Every step mixes each bucket by the next round of `topology`.
inline StepPrediction predict_gossip(const StepModel& model, const Topology& topology) {
  const LinkTable links(model.world, model.links);
  std::unordered_map<std::int64_t, Traffic> rounds;
  const auto source = [&](std::int64_t k, std::int64_t /*bucket*/) -> const Traffic* {
    const std::int64_t index = k % topology.period().value_or(k + 1);
    if (!rounds.contains(index)) rounds.emplace(index, traffic_of(topology.round(index), links));
    return &rounds.at(index);
  };
  return predict(model, links, source, /*waits_in_step=*/false);
}

/// Every step sums each bucket over all ranks.
inline StepPrediction predict_all_reduce(const StepModel& model) {
  const LinkTable links(model.world, model.links);
  Traffic traffic = all_reduce_traffic(links);
  traffic.late = 0;
  const auto source = [&](std::int64_t, std::int64_t) { return &traffic; };
  return predict(model, links, source, /*waits_in_step=*/true);
}

}  // namespace gossamer::apps
