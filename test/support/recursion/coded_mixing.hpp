#pragma once
// The oracle of encoded mixing, in double with whole vectors: x_i <- x_i + sum of w_ij (R(x_j) -
// R(x_i)), with R the nearest number of 16 bits. Groups of more than three ranks average without a
// codec. In rounds of two levels the sums of the nodes are mixed like this. Sums of gradients use R
// alone (ranks.hpp). Written from the opening comments of optim/codec.hpp and coded_sum.hpp.
// Shares no code with the library except the topologies.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "topology/topology.hpp"

namespace gossamer {

class CodedMixing {
 public:
  using Vectors = std::vector<std::vector<double>>;

  explicit CodedMixing(const std::string& codec) : has_range_(codec == "bf16") {}

  [[nodiscard]] Vectors mixed(const Round& round, const Vectors& x) const {
    const auto size = static_cast<std::size_t>(round.node_size);
    Vectors nodes(x.size() / size, std::vector<double>(x.front().size()));
    for (std::size_t i = 0; i < x.size(); ++i) add(nodes[i / size], 1.0, x[i]);
    Vectors after = nodes;
    std::vector<Arc> arcs = round.arcs;
    for (const Edge& edge : round.edges) {
      if (edge.ranks.size() <= 3) {
        append_arcs(edge, arcs);
        continue;
      }
      for (const int to : edge.ranks) {
        auto& mine = after[static_cast<std::size_t>(to)];
        std::ranges::fill(mine, 0.0);
        for (const int from : edge.ranks) {
          add(mine, from == to ? edge.weight : edge.share(), nodes[static_cast<std::size_t>(from)]);
        }
      }
    }
    for (const Arc& arc : arcs) {
      if (arc.from == arc.to) continue;
      auto& mine = after[static_cast<std::size_t>(arc.to)];
      add(mine, arc.weight, sent(nodes[static_cast<std::size_t>(arc.from)]));
      add(mine, -arc.weight, sent(nodes[static_cast<std::size_t>(arc.to)]));
    }
    Vectors result(x.size(), std::vector<double>(x.front().size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      add(result[i], 1.0 / round.node_size, after[i / size]);
    }
    return result;
  }

  /// The values as the other ranks understand them.
  [[nodiscard]] std::vector<double> sent(std::vector<double> x) const {
    for (double& value : x) {
      const auto single = static_cast<double>(static_cast<float>(value));
      value = single;
      if (single == 0.0) continue;
      const int exponent = has_range_ ? std::ilogb(single) : std::max(std::ilogb(single), -14);
      const double spacing = std::ldexp(1.0, exponent - (has_range_ ? 7 : 10));
      value = std::nearbyint(single / spacing) * spacing;
    }
    return x;
  }

 private:
  static void add(std::vector<double>& sum, double weight, const std::vector<double>& x) {
    for (std::size_t e = 0; e < x.size(); ++e) sum[e] += weight * x[e];
  }

  /// bf16; otherwise fp16.
  bool has_range_;
};

}  // namespace gossamer
