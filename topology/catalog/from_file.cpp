// A topology that its user has written down; topology_file.hpp has the format. Graphs get
// Metropolis-Hastings weights (Xiao, Boyd and Lall, IPSN 2005) or, directed, equal shares (Assran
// et al., ICML 2019).

#include "base/options.hpp"
#include "topology/registry.hpp"
#include "topology/topology_file.hpp"
#include "topology/topology_options.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_from_file(const World& world, const Options& options,
                                         std::span<const TopologyEntry> /*own*/) {
  const std::string path = options.read(from_file::kPath);
  return checked_topology(read_topology_file(path), path, world, options, from_file::kPath.name);
}

}  // namespace gossamer
