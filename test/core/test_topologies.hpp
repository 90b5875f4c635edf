#pragma once
// Topologies for tests that the registry does not have: unequal weights, no period, idle ranks.

#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "topology/topology.hpp"

namespace gossamer {

/// Every round divides the ranks anew into groups of 1, 2, 3, ... ranks, each with its own weight.
class RandomGroups : public Topology {
 public:
  RandomGroups(int world_size, std::uint64_t seed) : world_size_(world_size), seed_(seed) {}

  [[nodiscard]] std::string name() const override { return "random-groups"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return std::nullopt; }
  [[nodiscard]] Round round(std::int64_t k) const override {
    Random random(seed_, static_cast<std::uint64_t>(k));
    std::vector<int> ranks(static_cast<std::size_t>(world_size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    random.shuffle(std::span(ranks));
    std::vector<Edge> edges;
    while (!ranks.empty()) {
      const auto size = 1 + random.below(static_cast<std::int64_t>(ranks.size()));
      Edge edge = averaging_edge(std::vector<int>(ranks.end() - size, ranks.end()));
      if (size > 1) edge.weight = random.uniform(0.1, 0.9);
      ranks.resize(ranks.size() - static_cast<std::size_t>(size));
      edges.push_back(std::move(edge));
    }
    return complete_round(std::move(edges), world_size_);
  }

 private:
  int world_size_;
  std::uint64_t seed_;
};

/// Rounds given as a function, without a period.
class FunctionTopology : public Topology {
 public:
  using Function = std::function<Round(std::int64_t)>;
  explicit FunctionTopology(Function function) : function_(std::move(function)) {}
  [[nodiscard]] std::string name() const override { return "function"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return std::nullopt; }
  [[nodiscard]] Round round(std::int64_t k) const override { return function_(k); }

 private:
  Function function_;
};

}  // namespace gossamer
