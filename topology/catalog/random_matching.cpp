// In every round all ranks are paired anew, at random; with an odd number of ranks one sits out.
// Which pairs is a function of the seed and the round number alone, so every rank draws the same.
// Source: randomized gossip, Boyd et al., "Randomized gossip algorithms", IEEE Transactions on
// Information Theory 52 (2006), with a whole matching per round as in Wang et al., "MATCHA", 2019.

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/options.hpp"
#include "base/random.hpp"
#include "topology/registry.hpp"
#include "topology/topology_options.hpp"

namespace gossamer {
namespace {

class RandomMatching final : public Topology {
 public:
  RandomMatching(int world_size, std::uint64_t seed) : size_(world_size), seed_(seed) {}

  [[nodiscard]] std::string name() const override { return "random-matching"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override {
    if (size_ <= 2) return 1;
    return std::nullopt;
  }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    std::vector<int> ranks(static_cast<std::size_t>(size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    Random random(seed_, static_cast<std::uint64_t>(k));
    random.shuffle(std::span(ranks));
    // The pairs, in the order of their smaller rank.
    std::vector<int> peers(ranks.size(), -1);
    for (std::size_t i = 0; i + 1 < ranks.size(); i += 2) {
      peers[static_cast<std::size_t>(std::min(ranks[i], ranks[i + 1]))] =
          std::max(ranks[i], ranks[i + 1]);
    }
    std::vector<Edge> edges;
    edges.reserve(ranks.size() / 2 + 1);
    for (std::size_t rank = 0; rank < peers.size(); ++rank) {
      if (peers[rank] < 0) continue;
      edges.push_back(averaging_edge({static_cast<int>(rank), peers[rank]}));
    }
    return complete_round(std::move(edges), size_);
  }

 private:
  int size_;
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<Topology> make_random_matching(const World& world, const Options& options,
                                               std::span<const TopologyEntry> /*own*/) {
  const std::int64_t seed = options.read(random_matching::kSeed);
  return std::make_unique<RandomMatching>(world.size, static_cast<std::uint64_t>(seed));
}

}  // namespace gossamer
