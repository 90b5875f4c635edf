#include "apps/lab/simulate/virtual_network.hpp"

#include <cstdint>
#include <optional>
#include <utility>

#include "base/host_stream.hpp"
#include "core/exchange/grid_lane.hpp"
#include "core/exchange/tree_lane.hpp"
#include "topology/nodes.hpp"

namespace gossamer::apps {

/// The lanes of one rank.
class VirtualNetwork::RankLanes : public LaneFactory {
 public:
  RankLanes(VirtualNetwork& network, int rank) : network_(network), rank_(rank) {}

  NodeLanes split_by_node() override { return network_.nodes_of(rank_); }
  [[nodiscard]] int node_size() const override { return network_.node_size(); }
  [[nodiscard]] int num_ranks() const override { return network_.world_size_; }
  [[nodiscard]] std::int64_t num_tree_peers() const override {
    std::vector<std::vector<int>>& peers = network_.tree_peers_;
    if (peers.empty()) peers = tree_peers(*network_.topology_, network_.world_size_);
    return std::ssize(peers[static_cast<std::size_t>(rank_)]);
  }

 protected:
  std::unique_ptr<Lane> make(const LaneSpec& spec) override {
    if (num_lanes_ == network_.wires_.size()) {
      network_.wires_.push_back(std::make_unique<VirtualWire>(
          spec, network_.topology_, network_.world_size_, network_.codec_));
    }
    VirtualWire& wire = *network_.wires_[num_lanes_++];
    const auto next = first_grid(wire.codec());
    auto blocks = std::make_unique<VirtualLane>(wire, rank_, next);
    if (wire.codec() == nullptr || !wire.codec()->needs_grid()) return blocks;
    return std::make_unique<GridLane>(GridLane::Parts{.blocks = std::move(blocks),
                                                      .next = next,
                                                      .codec = *wire.codec(),
                                                      .votes = make(GridLane::votes_of(spec)),
                                                      .stream = stream_,
                                                      .num_wide = num_wide_differences_},
                                      spec);
  }

 private:
  class VirtualLane : public Lane {
   public:
    VirtualLane(VirtualWire& wire, int rank, std::shared_ptr<const NextGrid> next)
        : wire_(wire), rank_(rank), next_(std::move(next)) {}
    void start(std::int64_t k, const Buffer& send) override {
      grid_ = next_->grid.value_or(Grid());
      wire_.start(rank_, k, send.block(), next_->grid);
    }
    void wait() override {}
    Intake take() override {
      Intake intake = wire_.take(rank_);
      Coding& coding = intake.exchange.coding;
      coding.grid = grid_;
      if (coding.codec != nullptr) intake.exchange.stats = next_->stats;
      return intake;
    }
    void accumulate_residual(const Block& to) override { wire_.accumulate_residual(rank_, to); }
    void forget() override { wire_.forget(rank_); }

   private:
    VirtualWire& wire_;
    int rank_;
    std::shared_ptr<const NextGrid> next_;
    /// The grid of the round under way.
    Grid grid_;
  };

  VirtualNetwork& network_;
  int rank_;
  std::size_t num_lanes_ = 0;
  InlineStream stream_;
  std::int64_t num_wide_differences_ = 0;
};

VirtualNetwork::VirtualNetwork(std::shared_ptr<const Topology> topology, int world_size,
                               const Codec* codec)
    : topology_(std::move(topology)),
      world_size_(world_size),
      codec_(codec),
      weights_(static_cast<std::size_t>(world_size), 1.0) {
  for (int rank = 0; rank < world_size; ++rank) {
    ranks_.push_back(std::make_unique<RankLanes>(*this, rank));
  }
}

VirtualNetwork::~VirtualNetwork() = default;

LaneFactory& VirtualNetwork::lanes_of(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

int VirtualNetwork::node_size() const { return topology_ ? topology_->round(0).node_size : 1; }

NodeLanes VirtualNetwork::nodes_of(int rank) {
  const int size = node_size();
  const int num_nodes = world_size_ / size;
  if (inside_.empty()) {
    for (int node = 0; node < num_nodes; ++node) {
      inside_.push_back(std::make_unique<VirtualNetwork>(nullptr, size));
    }
    const auto topology = between_nodes(topology_);
    for (int place = 0; place < size; ++place) {
      between_.push_back(std::make_unique<VirtualNetwork>(topology, num_nodes));
    }
  }
  const int node = rank / size;
  const int place = rank % size;
  return {.inside = inside_[static_cast<std::size_t>(node)]->lanes_of(place),
          .between = between_[static_cast<std::size_t>(place)]->lanes_of(node),
          .place = place};
}

void VirtualNetwork::deliver(WorkerPool& pool) {
  for (const auto& wire : wires_) wire->deliver(pool);
  for (const auto& ranks : inside_) ranks->deliver(pool);
  for (std::size_t place = 0; place < between_.size(); ++place) {
    between_[place]->deliver(pool);
    const std::vector<double>& weights = between_[place]->weights();
    for (std::size_t node = 0; node < weights.size(); ++node) {
      weights_[node * between_.size() + place] = weights[node];
    }
  }
}

const std::vector<double>& VirtualNetwork::weights() const {
  for (const auto& wire : wires_) {
    if (wire->mixes()) return wire->weights();
  }
  return weights_;
}

}  // namespace gossamer::apps
