#include "core/exchange/topology_text.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <ios>
#include <span>
#include <sstream>
#include <vector>

#include "base/text.hpp"
#include "base/types.hpp"
#include "core/exchange/block_checksum.hpp"

namespace gossamer {
namespace {

/// Rounds that tell topologies of one name apart.
constexpr std::int64_t kComparedRounds = 16;

void append(const Round& round, std::vector<std::int64_t>& numbers) {
  const auto append_weight = [&numbers](double weight) {
    numbers.push_back(std::bit_cast<std::int64_t>(weight));
  };
  numbers.push_back(round.node_size);
  for (const Edge& edge : round.edges) {
    numbers.insert(numbers.end(), edge.ranks.begin(), edge.ranks.end());
    append_weight(edge.weight);
  }
  for (const Arc& arc : round.arcs) {
    numbers.insert(numbers.end(), {arc.from, arc.to});
    append_weight(arc.weight);
  }
}

}  // namespace

std::string text_of(const Topology& topology) {
  std::vector<std::int64_t> numbers;
  const std::int64_t count = std::min(topology.period().value_or(kManyRounds), kComparedRounds);
  for (std::int64_t k = 0; k < count; ++k) append(topology.round(k), numbers);
  std::ostringstream sum;
  sum << std::hex << checksum(block_of(std::span(numbers)));
  return concat(topology.name(), " with the rounds ", sum.str());
}

}  // namespace gossamer
