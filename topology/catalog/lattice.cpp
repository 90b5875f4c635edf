#include "topology/catalog/lattice.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "topology/topology_options.hpp"

namespace gossamer {
namespace {

/// The edges of a line of `length` places, or of a circle if it wraps, as few matchings: two, three
/// for an odd circle, one for two places.
std::vector<std::vector<std::pair<int, int>>> matchings_of_line(int length, bool wraps) {
  std::vector<std::vector<std::pair<int, int>>> matchings(3);
  for (int i = 0; i + 1 < length; ++i) {
    matchings[static_cast<std::size_t>(i % 2)].emplace_back(i, i + 1);
  }
  if (wraps && length > 2) {
    matchings[length % 2 == 0 ? 1 : 2].emplace_back(length - 1, 0);
  }
  std::erase_if(matchings, [](const auto& matching) { return matching.empty(); });
  return matchings;
}

int most_square(int size) {
  int rows = 1;
  for (int divisor = 1; std::int64_t{divisor} * divisor <= size; ++divisor) {
    if (size % divisor == 0) rows = divisor;
  }
  return rows;
}

}  // namespace

std::unique_ptr<Topology> make_lattice(std::string name, bool wraps, const World& world,
                                       const Options& options) {
  const std::int64_t given = options.read(lattice::kRows);
  if (given > 0 && world.size % given != 0) {
    options.fail("rows", concat(given, " does not divide the ", world.size,
                                " ranks, allowed: a divisor of it, or 0 for the most square"));
  }
  const int rows = given > 0 ? static_cast<int>(given) : most_square(world.size);
  const int columns = world.size / rows;
  const auto across = matchings_of_line(columns, wraps);
  const auto down = matchings_of_line(rows, wraps);
  std::vector<Round> rounds;
  // Directions in turn, so that news spreads both ways early.
  for (std::size_t turn = 0; turn < std::max(across.size(), down.size()); ++turn) {
    std::vector<Edge> edges;
    if (turn < across.size()) {
      for (int row = 0; row < rows; ++row) {
        for (const auto& [a, b] : across[turn]) {
          edges.push_back(averaging_edge({row * columns + a, row * columns + b}));
        }
      }
      rounds.push_back(complete_round(std::exchange(edges, {}), world.size));
    }
    if (turn < down.size()) {
      for (const auto& [a, b] : down[turn]) {
        for (int column = 0; column < columns; ++column) {
          edges.push_back(averaging_edge({a * columns + column, b * columns + column}));
        }
      }
      rounds.push_back(complete_round(std::move(edges), world.size));
    }
  }
  if (rounds.empty()) rounds.push_back(complete_round({}, world.size));
  return make_periodic(std::move(name), std::move(rounds));
}

}  // namespace gossamer
