#pragma once
// The topologies that the rows of a plan stand on. Each of them fits the world, and has options
// that suit the world. A place also has the number of rounds that its topology needs.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/lab/plan/plan_row.hpp"
#include "topology/spectrum.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

/// A topology with options that are not the defaults.
struct TopologyVariant {
  std::string name;
  std::string option = {};
  /// The second option; empty: none.
  std::string second = {};
  /// Ranks that the topology takes as one node (`comm.local_size`); 0: the ranks of a host.
  int local_size = 0;
  /// True: the model follows whole periods, however long they are.
  bool whole_periods = false;

  /// Returns a text such as `base-k, k: 3`.
  [[nodiscard]] std::string label() const;
  /// Returns a text such as `{name: base-k, k: 3}`.
  [[nodiscard]] std::string section() const;
};

/// A variant with its rounds.
struct Place {
  TopologyVariant variant;
  std::shared_ptr<const Topology> topology;
  std::optional<RoundCount> rounds;
};

/// The places of all topologies that fit. Where topologies are alike, the plan advises the first
/// one.
std::vector<Place> places_for(const PlanOptions& options);
/// The place that rare averages in pairs follow; null: it does not fit.
const Place* pair_place(const std::vector<Place>& places);

}  // namespace gossamer::apps
