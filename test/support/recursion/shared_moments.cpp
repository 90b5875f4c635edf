#include "test/support/recursion/shared_moments.hpp"

namespace gossamer::recursion {
namespace {

/// Means of a state of one parameter, in a round of the topology if the ranks meet in it.
template <class StateOf>
void share(Ranks& ranks, std::size_t parameter, std::int64_t round, bool in_rounds,
           const StateOf& state_of) {
  Vectors states;
  for (auto& optimizers : ranks.optimizers) states.push_back(state_of(optimizers[parameter]));
  const Vectors means =
      in_rounds ? ranks.mixed_plainly(round, states) : Vectors(states.size(), mean_of(states));
  for (std::size_t rank = 0; rank < means.size(); ++rank) {
    state_of(ranks.optimizers[rank][parameter]) = means[rank];
  }
}

}  // namespace

void share_moments(Ranks& ranks, int step, const Meetings& meetings) {
  if (step == 0) return;
  const std::int64_t cycle = meetings.cycle;
  const std::int64_t every =
      ranks.options.read(IntegerOption{.name = "share_moments", .rule = {.fallback = 0}}) / cycle;
  const std::int64_t momentum =
      ranks.options.read(IntegerOption{.name = "share_momentum", .rule = {.fallback = 0}}) / cycle;
  std::size_t value = 0;
  for (std::size_t i = 0; i < ranks.setup.parameters.size(); ++i) {
    const auto numel = static_cast<std::size_t>(ranks.setup.parameters[i].numel);
    if (numel == 0) continue;
    const std::int64_t steps = step + meetings.turn_of(value);
    value += numel;
    if (steps % cycle != 0) continue;
    const std::int64_t count = steps / cycle;
    const bool is_young = count < every && (count == 1 || count == 2 || count == 4 || count == 8);
    if (every > 0 && (count % every == 0 || is_young)) {
      share(ranks, i, count - 1, meetings.in_rounds,
            [](reference::Optimizer& one) -> std::vector<double>& { return one.second_moments(); });
    }
    if (momentum == 0 || count % momentum != 0) continue;
    // Over second moments of a rank's own nobody shares first ones.
    share(ranks, i, count - 1, meetings.in_rounds,
          [every](reference::Optimizer& one) -> std::vector<double>& {
            return every > 0 || !one.has_second_moments() ? one.momentum() : one.unshared;
          });
  }
}

}  // namespace gossamer::recursion
