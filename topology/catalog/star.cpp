// Rank 0 averages with ranks 1, 2, ..., n - 1 in turn; the others rest meanwhile. Source: the star
// graph of Lian et al., NeurIPS 2017 (a parameter server), taken apart into matchings as in Wang et
// al., "MATCHA: Speeding up decentralized SGD via matching decomposition sampling", 2019.

#include <algorithm>
#include <utility>

#include "base/options.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

// Not make_periodic: n - 1 rounds of n - 1 edges would be memory of order n^2.
class Star final : public Topology {
 public:
  explicit Star(int world_size) : size_(world_size) {}

  [[nodiscard]] std::string name() const override { return "star"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override {
    return std::max(1, size_ - 1);
  }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    if (size_ == 1) return complete_round({}, size_);
    return complete_round({averaging_edge({0, static_cast<int>(1 + k % (size_ - 1))})}, size_);
  }

 private:
  int size_;
};

}  // namespace

std::unique_ptr<Topology> make_star(const World& world, const Options& /*options*/,
                                    std::span<const TopologyEntry> /*own*/) {
  return std::make_unique<Star>(world.size);
}

}  // namespace gossamer
