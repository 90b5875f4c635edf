#include "topology/nodes.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "topology/check.hpp"

namespace gossamer {
namespace {

class BetweenNodes final : public Topology {
 public:
  explicit BetweenNodes(std::shared_ptr<const Topology> topology)
      : topology_(std::move(topology)), node_size_(topology_->round(0).node_size) {}
  [[nodiscard]] std::string name() const override { return topology_->name(); }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return topology_->period(); }
  [[nodiscard]] std::vector<std::int64_t> turning_points() const override {
    return topology_->turning_points();
  }
  [[nodiscard]] bool directed() const override { return topology_->directed(); }
  [[nodiscard]] Round round(std::int64_t k) const override {
    Round round = topology_->round(k);
    if (round.node_size != node_size_) {
      throw ConfigError(concat("the nodes of ", name(), " have ", node_size_,
                               " ranks in round 0 and ", round.node_size, " in round ", k,
                               "; take leaders_every: 1"));
    }
    round.node_size = 1;
    return round;
  }

 private:
  std::shared_ptr<const Topology> topology_;
  int node_size_;
};

}  // namespace

bool has_fixed_nodes(const Topology& topology) {
  // So many rounds are checked where the topology has no period.
  constexpr std::int64_t kNumChecked = 64;
  const int node_size = topology.round(0).node_size;
  // Nodes of one rank look like no nodes.
  if (node_size == 1 && topology.name() != "hierarchical") return false;
  const std::int64_t last = std::min(topology.period().value_or(kNumChecked), kLongestPeriod);
  for (std::int64_t k = 1; k < last; ++k) {
    if (topology.round(k).node_size != node_size) return false;
  }
  return true;
}

std::shared_ptr<const Topology> between_nodes(std::shared_ptr<const Topology> topology) {
  return std::make_shared<BetweenNodes>(std::move(topology));
}

}  // namespace gossamer
