// Base-(k+1) graphs: the exact mean after at most 2 log_(k+1)(n) + 2 rounds, for any number of
// ranks, with at most k peers per rank and round. Source: Takezawa et al., "Beyond exponential
// graph: communication-efficient topologies for decentralized learning via finite-time
// convergence", NeurIPS 2023, algorithms 1 to 3.
//
// Three constructions, each from the one before:
// - hyper-hypercube, for numbers of ranks whose prime factors are at most k + 1: groups of n_1,
// then
//   n_2, ... ranks average, n = n_1 n_2 ..., as digits of a number are gone through one by one.
// - simple: n in base k + 1 cuts the ranks into parts of a_l (k+1)^p_l ranks. Each part averages
//   inside. Then the first part meets all later ones: its a_1 blocks of (k+1)^p_1 ranks get the
//   mean of all ranks as the mean of the block, and all later ranks together keep it, too. The
//   second part does the same with the parts after it, and so on. Last, blocks average inside.
// - full: n = p q, p made of small prime factors: p parts of q ranks average by the simple
//   construction side by side, then ranks of the same place in their parts as a hyper-hypercube.
//   The shorter one of simple and full is taken.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "base/options.hpp"
#include "topology/registry.hpp"
#include "topology/topology_options.hpp"

namespace gossamer {
namespace {

using Ranks = std::vector<int>;

/// A round among some of the ranks.
struct Links {
  std::vector<Edge> edges;
  std::vector<Arc> arcs;

  void add(Links other) {
    edges.insert(edges.end(), std::move_iterator(other.edges.begin()),
                 std::move_iterator(other.edges.end()));
    arcs.insert(arcs.end(), other.arcs.begin(), other.arcs.end());
  }
};
using Rounds = std::vector<Links>;

/// Adds `rounds` to the rounds from `begin` on.
void add_from(Rounds& all, std::size_t begin, Rounds rounds) {
  all.resize(std::max(all.size(), begin + rounds.size()));
  for (std::size_t k = 0; k < rounds.size(); ++k) all[begin + k].add(std::move(rounds[k]));
}

Ranks part_of(const Ranks& ranks, std::size_t first, std::size_t count) {
  const auto begin = ranks.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

class BaseGraph {
 public:
  explicit BaseGraph(int most_peers) : base_(static_cast<std::size_t>(most_peers) + 1) {}

  Rounds full(const Ranks& ranks) {
    Rounds simple_one = simple(ranks);
    const std::size_t smooth = smooth_part(ranks.size());
    const std::size_t rest = ranks.size() / smooth;
    if (smooth == 1 || rest == 1) return simple_one;
    Rounds rounds;
    for (std::size_t p = 0; p < smooth; ++p) {
      add_from(rounds, 0, simple(part_of(ranks, p * rest, rest)));
    }
    const std::size_t across = rounds.size();
    for (std::size_t q = 0; q < rest; ++q) {
      Ranks column;
      for (std::size_t p = 0; p < smooth; ++p) column.push_back(ranks[p * rest + q]);
      add_from(rounds, across, hyper_hypercube(column));
    }
    return rounds.size() < simple_one.size() ? rounds : simple_one;
  }

 private:
  /// The largest divisor whose prime factors are at most k + 1.
  [[nodiscard]] std::size_t smooth_part(std::size_t size) const {
    std::size_t smooth = 1;
    for (std::size_t factor = 2; factor <= std::min(base_, size); ++factor) {
      while (size % factor == 0) {
        size /= factor;
        smooth *= factor;
      }
    }
    return smooth;
  }

  /// As few factors of at most k + 1 as possible; `size` must have such.
  const std::vector<std::size_t>& factors_of(std::size_t size) {
    const auto known = factors_.find(size);
    if (known != factors_.end()) return known->second;
    std::vector<std::size_t> best;
    for (std::size_t factor = std::min(base_, size); factor >= 2; --factor) {
      if (size % factor != 0 || smooth_part(size / factor) != size / factor) continue;
      const std::vector<std::size_t>& rest = factors_of(size / factor);
      if (best.empty() || rest.size() + 1 < best.size()) {
        best = rest;
        best.insert(best.begin(), factor);
      }
    }
    return factors_[size] = std::move(best);
  }

  Rounds hyper_hypercube(const Ranks& ranks) {
    Rounds rounds;
    std::size_t stride = 1;
    for (const std::size_t factor : factors_of(ranks.size())) {
      Links& links = rounds.emplace_back();
      for (std::size_t first = 0; first < ranks.size(); ++first) {
        if (first / stride % factor != 0) continue;
        Ranks group;
        for (std::size_t digit = 0; digit < factor; ++digit) {
          group.push_back(ranks[first + digit * stride]);
        }
        links.edges.push_back(averaging_edge(std::move(group)));
      }
      stride *= factor;
    }
    return rounds;
  }

  /// Ranks whose number is one digit of n: `digit` blocks of `block` ranks.
  struct Part {
    Ranks ranks;
    std::size_t digit = 0;
    std::size_t block = 1;
  };

  [[nodiscard]] std::vector<Part> parts_of(const Ranks& ranks) const {
    std::size_t block = 1;
    while (block * base_ <= ranks.size()) block *= base_;
    std::vector<Part> parts;
    for (std::size_t first = 0; first < ranks.size(); block /= base_) {
      const std::size_t digit = (ranks.size() - first) / block;
      if (digit == 0) continue;
      parts.push_back({part_of(ranks, first, digit * block), digit, block});
      first += digit * block;
    }
    return parts;
  }

  /// The i-th of the later ranks averages with the i-th rank of every block, so that the mean of
  /// each block becomes the mean of `part` and `later` together.
  static Links meeting(const Part& part, const Ranks& later) {
    const double weight =
        static_cast<double>(part.block) / static_cast<double>(part.ranks.size() + later.size());
    Links links;
    for (std::size_t i = 0; i < later.size(); ++i) {
      if (part.digit == 1) {
        Edge edge = averaging_edge({part.ranks[i], later[i]});
        edge.weight = 1.0 - weight;
        links.edges.push_back(std::move(edge));
        continue;
      }
      for (std::size_t b = 0; b < part.digit; ++b) {
        const int peer = part.ranks[b * part.block + i];
        links.arcs.push_back({peer, later[i], weight});
        links.arcs.push_back({later[i], peer, weight});
        links.arcs.push_back({peer, peer, 1.0 - weight});
      }
      links.arcs.push_back({later[i], later[i], 1.0 - weight * static_cast<double>(part.digit)});
    }
    return links;
  }

  Rounds simple(const Ranks& ranks) {
    if (smooth_part(ranks.size()) == ranks.size()) return hyper_hypercube(ranks);
    const std::vector<Part> parts = parts_of(ranks);
    Rounds rounds;
    for (const Part& part : parts) add_from(rounds, 0, hyper_hypercube(part.ranks));
    std::size_t meets = rounds.size();
    std::size_t first_later = 0;
    for (std::size_t l = 0; l + 1 < parts.size(); ++l, ++meets) {
      const Part& part = parts[l];
      first_later += part.ranks.size();
      const Ranks later = part_of(ranks, first_later, ranks.size() - first_later);
      add_from(rounds, meets, {meeting(part, later)});
      for (std::size_t b = 0; b < part.digit; ++b) {
        add_from(rounds, meets + 1,
                 hyper_hypercube(part_of(part.ranks, b * part.block, part.block)));
      }
    }
    return rounds;
  }

  std::size_t base_;
  std::map<std::size_t, std::vector<std::size_t>> factors_;
};

}  // namespace

std::unique_ptr<Topology> make_base_k(const World& world, const Options& options,
                                      std::span<const TopologyEntry> /*own*/) {
  const std::int64_t peers = options.read(base_k::kPeers);
  Ranks ranks(static_cast<std::size_t>(world.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<Round> rounds;
  for (Links& links : BaseGraph(static_cast<int>(peers)).full(ranks)) {
    rounds.push_back(complete_round(std::move(links.edges), world.size, std::move(links.arcs)));
  }
  if (rounds.empty()) rounds.push_back(complete_round({}, world.size));
  return make_periodic("base-k", std::move(rounds));
}

}  // namespace gossamer
