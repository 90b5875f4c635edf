#include "test/comm/elastic/explorer.hpp"

#include "test/comm/elastic/run_states.hpp"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/text.hpp"

namespace gossamer::membership {
namespace {

class Explorer {
 public:
  explicit Explorer(const Setting& setting) : run_(setting) {}

  Exploration explore() {
    const State first = run_.first();
    try {
      visit(first);
    } catch (const Fault& fault) {
      result_.fault = fault.what();
      State state = first;
      for (const Event& event : way_) {
        result_.fault += concat("\n  ", run_.describe(state, event));
        // The last event may be the one at fault.
        if (&event != &way_.back()) state = run_.after(state, event);
      }
    }
    result_.states = std::ssize(seen_);
    return result_;
  }

 private:
  void visit(const State& state) {
    const auto [found, is_new] = seen_.try_emplace(state, true);
    if (!is_new) {
      require(!found->second, "the same state comes again: the members may talk for ever");
      return;
    }
    bool& is_on_way = found->second;
    result_.epochs = std::max(result_.epochs, run_.epoch(state).number);
    const std::vector<Event> due = run_.due(state);
    if (due.empty()) {
      ++result_.ends;
      if (run_.trains(state)) ++result_.training;
      run_.check_end(state);
    }
    for (const auto& events : {due, run_.possible(state)}) {
      for (const Event& event : events) {
        way_.push_back(event);
        visit(run_.after(state, event));
        way_.pop_back();
      }
    }
    is_on_way = false;
  }

  RunStates run_;
  /// True: on the way to the present one.
  std::unordered_map<State, bool, HashOfBytes> seen_;
  /// The events that lead to the present state.
  std::vector<Event> way_;
  Exploration result_;
};

}  // namespace

Exploration explore(const Setting& setting) { return Explorer(setting).explore(); }

}  // namespace gossamer::membership
