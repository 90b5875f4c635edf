// A topology that its user has written down; topology_file.hpp has the format. Graphs get
// Metropolis-Hastings weights (Xiao, Boyd and Lall, IPSN 2005) or, directed, equal shares (Assran
// et al., ICML 2019).

#include <utility>

#include "base/error.hpp"
#include "base/options.hpp"
#include "base/text.hpp"
#include "topology/topology_file.hpp"
#include "topology/topology_options.hpp"
#include "topology/verify.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_from_file(const World& world, const Options& options) {
  const std::string path = options.read(from_file::kPath);
  TopologyFile file = read_topology_file(path);
  if (file.world_size != world.size) {
    options.fail("path",
                 concat(path, " is for ", file.world_size, " ranks, this world has ", world.size));
  }
  auto topology = unchecked_topology(std::move(file));
  if (const auto found = find_violation(*topology, world.size, *topology->period())) {
    const std::string round = found->round < 0 ? "" : concat("round ", found->round, ": ");
    options.fail("path", concat(path, ": ", round, found->text));
  }
  return topology;
}

}  // namespace gossamer
