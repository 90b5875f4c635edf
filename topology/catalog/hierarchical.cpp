// Two levels: the ranks of every node average in every round; every H rounds (`leaders_every`, 1 by
// default) the nodes mix as well, along any other topology (`leaders`). Only one rank per node, its
// leader, talks over the network then: the node's sum goes into the inbox, the leaders exchange
// inboxes, and the result is broadcast in the node. Sources: the two-level averaging of
// Castiglia, Das and Patterson, "Multi-level local SGD", ICLR 2021; for gossip between nodes and
// all-reduce inside, Assran et al., "Stochastic gradient push", ICML 2019, section 6.

#include <numeric>
#include <utility>

#include "base/options.hpp"
#include "topology/registry.hpp"
#include "topology/topology_options.hpp"

namespace gossamer {
namespace {

class Hierarchical final : public Topology {
 public:
  Hierarchical(const World& world, std::unique_ptr<Topology> leaders, std::int64_t every)
      : node_size_(world.node_size), leaders_(std::move(leaders)), every_(every) {
    std::vector<Edge> nodes;
    for (int first = 0; first < world.size; first += node_size_) {
      std::vector<int> ranks(static_cast<std::size_t>(node_size_));
      std::iota(ranks.begin(), ranks.end(), first);
      nodes.push_back(averaging_edge(std::move(ranks)));
    }
    inside_ = complete_round(std::move(nodes), world.size);
  }

  [[nodiscard]] std::string name() const override { return "hierarchical"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override {
    const auto period = leaders_->period();
    if (!period) return std::nullopt;
    return rounds_times(*period, every_);
  }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    if (k % every_ != every_ - 1) return inside_;
    return two_level_round(leaders_->round(k / every_), node_size_);
  }
  [[nodiscard]] std::vector<std::int64_t> turning_points() const override {
    std::vector<std::int64_t> points = leaders_->turning_points();
    for (std::int64_t& point : points) point = rounds_times(point, every_) + every_ - 1;
    return points;
  }
  [[nodiscard]] bool directed() const override { return leaders_->directed(); }

 private:
  int node_size_;
  std::unique_ptr<Topology> leaders_;
  std::int64_t every_;
  Round inside_;
};

}  // namespace

bool hierarchical_fits(const World& world) {
  return world.size >= 1 && world.node_size >= 1 && world.size % world.node_size == 0;
}

std::unique_ptr<Topology> make_hierarchical(const World& world, const Options& options,
                                            std::span<const TopologyEntry> own) {
  const World nodes{.size = world.size / world.node_size};
  auto leaders = read_part(options.read(hierarchical::kLeaders), nodes, own, "ring");
  const std::int64_t every = options.read(hierarchical::kLeadersEvery);
  return std::make_unique<Hierarchical>(world, std::move(leaders), every);
}

}  // namespace gossamer
