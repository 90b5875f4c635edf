#include "test/support/recursion/recursion.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.hpp"

namespace gossamer {
namespace recursion {

Algorithm allreduce(const Ranks& ranks);
Algorithm choco(const Ranks& ranks);
Algorithm gossip(const Ranks& ranks);
Algorithm gradient_tracking(const Ranks& ranks);
Algorithm late_average(const Ranks& ranks);
Algorithm momentum_tracking(const Ranks& ranks);
Algorithm node_gossip(const Ranks& ranks);
Algorithm outer(const Ranks& ranks);
Algorithm relay(const Ranks& ranks);

namespace {

/// No communication: each rank skips its own steps.
Algorithm local(const Ranks&) {
  return [](Ranks& ranks, Step& step) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (step.skips[rank]) continue;
      ranks.clip(rank, step.gradients[rank]);
      ranks.apply(rank, step.gradients[rank]);
    }
  };
}

struct Entry {
  std::string_view name;
  Algorithm (*make)(const Ranks& ranks);
};

constexpr std::array kTable = {
    Entry{"allreduce", allreduce},
    Entry{"choco", choco},
    Entry{"gossip", gossip},
    Entry{"gradient_tracking", gradient_tracking},
    Entry{"late_average", late_average},
    Entry{"local", local},
    Entry{"momentum_tracking", momentum_tracking},
    Entry{"node_gossip", node_gossip},
    Entry{"outer", outer},
    Entry{"relay", relay},
};

Algorithm algorithm_of(const Ranks& ranks) {
  const std::string& name = ranks.setup.algorithm;
  const auto entry = std::ranges::find(kTable, name, &Entry::name);
  if (entry == kTable.end()) {
    throw std::logic_error(concat("the recursion of ", name, " is not written"));
  }
  return entry->make(ranks);
}

}  // namespace
}  // namespace recursion

Recursion::Recursion(Setup setup)
    : ranks_(std::move(setup)), step_(recursion::algorithm_of(ranks_)) {}

const Recursion::Vectors& Recursion::advance() {
  recursion::Step step{.number = num_steps_++};
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const int number = static_cast<int>(rank);
    step.gradients.push_back(ranks_.setup.gradients(ranks_.x[rank], number, step.number));
    step.skips.push_back(ranks_.setup.breaks(number, step.number));
  }
  ranks_.before = ranks_.x;
  step_(ranks_, step);
  ranks_.past.push_back(ranks_.x);
  return ranks_.x;
}

}  // namespace gossamer
