#include "python/src/options.hpp"

#include <array>
#include <memory>
#include <utility>

#include "base/yaml.hpp"
#include "core/plug_ins.hpp"
#include "topology/registry.hpp"
#include "topology/topology_file.hpp"

namespace gossamer::python {
namespace {

std::unique_ptr<Topology> make_own(const World& world, const Options& options) {
  const std::string name = options.text("class", std::nullopt);
  TopologyFile given = read_topology_text(options.text("rounds", std::nullopt), name);
  given.name = name;
  return checked_topology(std::move(given), name, world, options, "rounds");
}

constexpr std::array kOwn = {
    TopologyEntry{.name = "OwnTopology",
                  .summary = "the rounds of a class of Python",
                  .options = {},
                  .needs_options = true,
                  .sizes = "the world size of its rounds",
                  .fits = [](const World& world) { return world.size >= 1; },
                  .make = make_own},
};

}  // namespace

Options given_options(const std::string& yaml) {
  return PlugIns{.topologies = kOwn}.options(parse_yaml(yaml, "options"));
}

}  // namespace gossamer::python
