#include "apps/train/phases.hpp"

#include "apps/train/sections.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/step/algorithm_switch.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

/// The world for which topologies are read, and the name of the one that fits any world; empty:
/// none.
struct Place {
  const World& world;
  const PlugIns& own;
  std::string fallback;
};

using TopologyPtr = std::shared_ptr<const Topology>;

/// Reads a topology. Throws ConfigError if the algorithm cannot follow it.
TopologyPtr read_topology_of(const AlgorithmChoice& algorithm, const Options& parent,
                             const Place& place) {
  const Options section = parent.named_section("topology");
  TopologyPtr topology;
  try {
    topology = read_topology(section, place.world, std::nullopt, place.own.topologies);
  } catch (const ConfigError&) {
    if (place.fallback.empty()) throw;
    return fallback_topology(algorithm, place.fallback, place.world);
  }
  const std::string reason = algorithm.why_not({.topology = topology.get()});
  if (!reason.empty()) parent.fail("topology", reason);
  return topology;
}

std::optional<ConsensusControl> read_control(const Options& options,
                                             const AlgorithmChoice& algorithm, const Place& place) {
  constexpr std::string_view kKey = "consensus_control";
  if (!options.has(kKey)) return std::nullopt;
  if (!algorithm.needs_topology()) {
    options.fail(kKey, concat("chooses between two topologies, and ", algorithm.name(),
                              " has none, allowed with gossip and other algorithms of a topology"));
  }
  const Options section = options.section(kKey);
  ConsensusControl control;
  control.target = section.read(consensus_section::kTarget);
  control.hysteresis = section.read(consensus_section::kHysteresis);
  control.every = section.read(consensus_section::kEvery);
  control.sparse = read_topology_of(algorithm, section, place);
  return control;
}

/// The algorithm of a section, and its consensus control.
RunPhase read_algorithm_of(const Options& section, std::optional<std::string_view> fallback,
                           const Place& place) {
  RunPhase phase;
  phase.method.algorithm = {
      section.read(kAlgorithmName, fallback, algorithm_names(place.own.algorithms)), section,
      place.own.algorithms};
  phase.control = read_control(section, phase.method.algorithm, place);
  return phase;
}

/// An item of `phases`. Its topology is null if it names none.
RunPhase read_phase(const Options& part, const Place& place) {
  RunPhase phase = read_algorithm_of(part.read(phase_section::kAlgorithm), std::nullopt, place);
  const AlgorithmEntry& entry = phase.method.algorithm.entry();
  if (part.has("topology")) {
    if (!phase.method.algorithm.needs_topology()) {
      part.fail("topology", concat(entry.name, " uses none, allowed: null"));
    }
    phase.method.topology = read_topology_of(phase.method.algorithm, part, place);
  }
  FlagOption average = phase_section::kAverage;
  average.rule.fallback = entry.needs_equal_models();
  phase.method.average = part.read(average);
  if (!phase.method.average && entry.needs_equal_models()) {
    part.fail("average", concat("is false, but ", entry.name,
                                " begins with equal models on all ranks, allowed: true"));
  }
  return phase;
}

/// Gives the run's `topology` to the phases that need one and name none.
void share_topology(const Options& section, const Place& place, std::vector<RunPhase>& phases) {
  TopologyPtr topology;
  for (RunPhase& phase : phases) {
    const AlgorithmChoice& algorithm = phase.method.algorithm;
    if (!algorithm.needs_topology() || phase.method.topology) continue;
    try {
      if (!topology) topology = read_topology(section, place.world, "ring", place.own.topologies);
    } catch (const ConfigError&) {
      if (place.fallback.empty()) throw;
      phase.method.topology = fallback_topology(algorithm, place.fallback, place.world);
      continue;
    }
    const std::string reason = algorithm.why_not({.topology = topology.get()});
    if (!reason.empty()) section.fail("name", reason);
    phase.method.topology = topology;
  }
  // The same file must run with `algorithm=allreduce` on any world size.
  if (!topology) section.accept_unknown();
}

}  // namespace

bool ConsensusControl::chooses_sparse(bool is_sparse, double distance, double lr_factor) const {
  const double most = target * lr_factor;
  return distance <= (is_sparse ? most : (1.0 - hysteresis) * most);
}

AlgorithmSwitch RunPhase::method_with(bool is_sparse) const {
  AlgorithmSwitch result = method;
  if (is_sparse) result.topology = control->sparse;
  return result;
}

std::vector<RunPhase> read_phases(const Options& root, const World& world, const PlugIns& own,
                                  const std::string& fallback) {
  const Place place{.world = world, .own = own, .fallback = fallback};
  const Options section = root.named_section("algorithm");
  std::vector<RunPhase> phases;
  if (!section.has("phases")) {
    phases.push_back(read_algorithm_of(section, kAlgorithmName.rule.fallback, place));
  } else {
    if (section.has("name")) section.fail("phases", "stands beside name, allowed: one of the two");
    const std::vector<Options> parts = section.named_sections("phases");
    std::int64_t first = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      phases.push_back(read_phase(parts[p], place));
      phases.back().first_step = first;
      if (p + 1 < parts.size()) {
        IntegerOption until = phase_section::kUntil;
        until.rule.min = first + 1;
        first = parts[p].read(until);
      } else if (parts[p].has("until")) {
        parts[p].fail("until", "the last phase has no end; leave this key out");
      }
    }
  }
  share_topology(root.section("topology"), place, phases);
  return phases;
}

std::string describe(const AlgorithmSwitch& method) {
  return concat(method.algorithm.name(), method.topology ? " on " + method.topology->name() : "");
}

std::string describe(const std::vector<RunPhase>& phases) {
  std::vector<std::string> parts;
  for (const RunPhase& phase : phases) {
    std::string text = describe(phase.method);
    if (phase.control) text += concat(" or ", phase.control->sparse->name());
    if (phase.first_step > 0) text += concat(" from step ", phase.first_step, " on");
    parts.push_back(std::move(text));
  }
  return join(parts, ", ");
}

}  // namespace gossamer::apps
