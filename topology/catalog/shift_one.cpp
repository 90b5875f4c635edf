// The ranks form two halves, and every rank averages with one rank of the other half, with the next
// one in every round. Source: the peer selection `shift_one` of Gan et al., "BAGUA: Scaling up
// Distributed Learning with System Relaxations", VLDB 2021.
//
// For n = 2 h ranks, rank i < h meets rank h + (i + k) mod h in round k, as in Bagua. Bagua refuses
// odd n. Here rank k mod n then sits round k out, and the others, counted from the next rank on, do
// what the ranks of an even world do. After n rounds every rank has rested once.

#include <algorithm>
#include <utility>

#include "base/options.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

// Not make_periodic: up to n rounds of n/2 pairs would be memory of order n^2.
class ShiftOne final : public Topology {
 public:
  explicit ShiftOne(int world_size) : size_(world_size), half_(world_size / 2) {}

  [[nodiscard]] std::string name() const override { return "shift-one"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override {
    return is_even() ? std::max(1, half_) : size_;
  }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    const std::int64_t turn = k % *period();
    // The first rank of the lower half.
    const std::int64_t first = is_even() ? 0 : turn + 1;
    std::vector<Edge> edges;
    edges.reserve(static_cast<std::size_t>(half_) + 1);
    for (std::int64_t place = 0; place < half_; ++place) {
      const std::int64_t lower = (first + place) % size_;
      const std::int64_t upper = (first + half_ + (place + turn) % half_) % size_;
      edges.push_back(averaging_edge({static_cast<int>(lower), static_cast<int>(upper)}));
    }
    return complete_round(std::move(edges), size_);
  }

 private:
  [[nodiscard]] bool is_even() const { return size_ % 2 == 0; }

  int size_;
  int half_;
};

}  // namespace

std::unique_ptr<Topology> make_shift_one(const World& world, const Options& /*options*/,
                                         std::span<const TopologyEntry> /*own*/) {
  return std::make_unique<ShiftOne>(world.size);
}

}  // namespace gossamer
