#pragma once
// Options that Python gives. Their topologies may be a user's own, whose rounds Python has made:
//
//   {name: OwnTopology, class: Pairs, rounds: TEXT}
//
// TEXT is what a topology file holds (topology_file.hpp), and `class` names it in messages.

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/options.hpp"
#include "base/types.hpp"
#include "core/step/pipeline.hpp"
#include "core/trace/step_timeline.hpp"
#include "optim/optimizer.hpp"
#include "topology/registry.hpp"

namespace gossamer::python {

/// Reads options that Python gives as YAML. Throws ConfigError if the text is no YAML.
Options given_options(const std::string& yaml);
/// The topologies of Python.
std::span<const TopologyEntry> own_topologies();

/// Algorithm, topology and codec. A topology that the algorithm does not use has no effect, as in
/// the program. `comm: {codec: NAME, local_size: N}` of the program's configurations works, too.
/// This and the following functions throw ConfigError.
/// `fallback` names the topology of a world that the given topology does not fit (see
/// fallback_topology()); empty: a ConfigError.
ExchangeOptions read_exchange(const Options& root, const World& world,
                              std::string_view fallback = "");
/// The engine's options but the optimizer, the schedule, the stream and the timeline.
Pipeline::Config read_engine_options(const Options& root, const World& world);
/// `yaml` names the optimizer and has its numbers.
std::shared_ptr<const Optimizer> read_optimizer(const std::string& yaml);
/// The configuration of the timeline; nothing where no timeline is asked for.
std::optional<StepTimeline::Config> read_timeline(const Options& root, bool is_asynchronous);

}  // namespace gossamer::python
