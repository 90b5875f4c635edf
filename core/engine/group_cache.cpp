#include "gossamer/core/engine/group_cache.hpp"

#include <algorithm>
#include <stdexcept>

namespace gossamer {

GroupCache::GroupCache(Communicator& world, const Topology& topology)
    : world_(world), topology_(topology) {
  for (std::int64_t k = 0; k < topology.period().value_or(0); ++k) {
    rounds_.push_back(topology.round(k));
    check_round(rounds_.back(), world_.size());
    build_groups(rounds_.back());
  }
}

const Round& GroupCache::round(std::int64_t k) {
  if (const auto period = topology_.period()) {
    return rounds_[static_cast<std::size_t>(k % *period)];
  }
  if (k != last_round_) {
    rounds_.assign(1, topology_.round(k));
    check_round(rounds_.front(), world_.size());
    build_groups(rounds_.front());
    last_round_ = k;
  }
  return rounds_.front();
}

void GroupCache::build_groups(const Round& round) {
  int color = -1;
  int next_color = 0;
  std::vector<std::vector<int>> fresh;
  for (const Edge& edge : round.edges) {
    if (edge.ranks.size() <= 2 || static_cast<int>(edge.ranks.size()) == world_.size()) continue;
    if (groups_.contains(edge.ranks)) continue;
    if (std::ranges::binary_search(edge.ranks, world_.rank())) color = next_color;
    fresh.push_back(edge.ranks);
    ++next_color;
  }
  if (fresh.empty()) return;
  std::unique_ptr<Communicator> mine = world_.split(color);
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    groups_[fresh[i]] = static_cast<int>(i) == color ? std::move(mine) : nullptr;
  }
}

Communicator& GroupCache::group(const Edge& edge) const {
  if (static_cast<int>(edge.ranks.size()) == world_.size()) return world_;
  const auto found = groups_.find(edge.ranks);
  if (found == groups_.end() || !found->second) {
    throw std::logic_error("GroupCache::group: this rank is not in that group");
  }
  return *found->second;
}

std::int64_t GroupCache::num_groups() const {
  return std::ranges::count_if(groups_, [](const auto& entry) { return entry.second != nullptr; });
}

}  // namespace gossamer
