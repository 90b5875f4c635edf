#include "core/step/algorithm_switch.hpp"

#include "base/text.hpp"
#include "core/bucket/bucket_plan.hpp"
#include "core/exchange/topology_text.hpp"
#include "topology/registry.hpp"

namespace gossamer {

std::shared_ptr<const Topology> fallback_topology(const AlgorithmChoice& algorithm,
                                                  std::string_view name, const World& world) {
  std::shared_ptr<const Topology> topology = make_topology(name, world);
  if (algorithm.why_not({.topology = topology.get()}).empty()) return topology;
  return make_topology("static-ring", world);
}

void agree_on_switch(Communicator& communicator, const AlgorithmSwitch& to, std::int64_t step) {
  agree(communicator, "what they switch to",
        concat("after step ", step, "\nthe algorithm ", to.algorithm.text(), "\nthe topology ",
               to.topology ? text_of(*to.topology) : "none",
               to.averages() ? "\nall models become their mean" : "\nmodels stay as they are"));
}

}  // namespace gossamer
