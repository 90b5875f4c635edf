#pragma once
// Directed graphs in which ranks speak to different numbers of others; circulant ones, in which all
// do the same, are doubly stochastic and prove nothing about push-sum.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "topology/graph.hpp"

namespace gossamer {

/// A circle in one direction and random links on top: strongly connected.
inline Round irregular_round(int world_size, std::uint64_t seed) {
  Random random(seed);
  std::vector<Link> links;
  for (int rank = 0; rank < world_size; ++rank) {
    links.emplace_back(rank, (rank + 1) % world_size);
    const std::int64_t more = random.below(world_size);
    for (std::int64_t m = 0; m < more; ++m) {
      links.emplace_back(rank, static_cast<int>(random.below(world_size)));
    }
  }
  return directed_round(links, world_size);
}

class IrregularDigraph : public Topology {
 public:
  explicit IrregularDigraph(int world_size) : world_size_(world_size) {}
  [[nodiscard]] std::string name() const override { return "irregular"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return 3; }
  [[nodiscard]] Round round(std::int64_t k) const override {
    return irregular_round(world_size_, static_cast<std::uint64_t>(k % 3));
  }
  [[nodiscard]] bool directed() const override { return true; }

 private:
  int world_size_;
};

}  // namespace gossamer
