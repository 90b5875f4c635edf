// Ranks on a circle; each averages with one neighbour at a time. Sources: the ring of Lian et al.,
// "Can decentralized algorithms outperform centralized algorithms?", NeurIPS 2017, taken apart into
// pairs as in Wang et al., "MATCHA: Speeding up decentralized SGD via matching decomposition
// sampling", 2019, with the pairs in a fixed order.
//
// Round k pairs (k, k+1), (k+2, k+3), ... around the circle. With an even number of ranks that is
// the right neighbour, then the left one. With an odd number rank k-1 is left over, so the pairs
// move on by one rank per round. After n rounds every rank has met both neighbours equally often
// and has rested once. Moving on by one also mixes fastest: of all step lengths it has the smallest
// spectral radius per round (compared for n = 3 to 19).

#include <utility>

#include "base/options.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

// Not make_periodic: n rounds of n/2 pairs would be memory of order n^2.
class Ring final : public Topology {
 public:
  explicit Ring(int world_size) : size_(world_size) {}

  [[nodiscard]] std::string name() const override { return "ring"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return rounds(); }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    const std::int64_t start = k % rounds();
    std::vector<Edge> edges;
    edges.reserve(static_cast<std::size_t>(size_ / 2 + 1));
    for (std::int64_t pair = 0; pair < size_ / 2; ++pair) {
      const std::int64_t rank = start + 2 * pair;
      edges.push_back(averaging_edge({on_circle(rank), on_circle(rank + 1)}));
    }
    return complete_round(std::move(edges), size_);
  }

 private:
  [[nodiscard]] std::int64_t rounds() const { return size_ % 2 == 0 ? 2 : size_; }
  [[nodiscard]] int on_circle(std::int64_t rank) const { return static_cast<int>(rank % size_); }

  int size_;
};

}  // namespace

std::unique_ptr<Topology> make_ring(const World& world, const Options& /*options*/,
                                    std::span<const TopologyEntry> /*own*/) {
  return std::make_unique<Ring>(world.size);
}

}  // namespace gossamer
