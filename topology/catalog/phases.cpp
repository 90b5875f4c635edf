// `phases: [{until: 1000, topology: complete}, {topology: ring}]`: one topology after the other.
// `until` is the first round that is not the phase's any more; the last phase has none and goes on.
// Every phase counts its own rounds from 0.

#include <algorithm>
#include <limits>
#include <utility>

#include "base/text.hpp"
#include "topology/registry.hpp"
#include "topology/topology_options.hpp"

namespace gossamer {
namespace {

struct PhaseOfRun {
  std::int64_t first = 0;
  std::unique_ptr<Topology> topology;
};

class Phases final : public Topology {
 public:
  explicit Phases(std::vector<PhaseOfRun> phases) : phases_(std::move(phases)) {}

  [[nodiscard]] std::string name() const override {
    std::vector<std::string> parts;
    for (const PhaseOfRun& phase : phases_) {
      parts.push_back(phase.first == 0 ? phase.topology->name()
                                       : concat(phase.topology->name(), " from ", phase.first));
    }
    return concat("phases [", join(parts, ", "), "]");
  }
  [[nodiscard]] std::optional<std::int64_t> period() const override {
    if (phases_.size() > 1) return std::nullopt;
    return phases_.front().topology->period();
  }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    auto next = std::ranges::upper_bound(phases_, k, std::ranges::less(), &PhaseOfRun::first);
    const PhaseOfRun& phase = *std::prev(next);
    return phase.topology->round(k - phase.first);
  }
  [[nodiscard]] std::vector<std::int64_t> turning_points() const override {
    std::vector<std::int64_t> points;
    for (std::size_t p = 0; p < phases_.size(); ++p) {
      const std::int64_t first = phases_[p].first;
      const std::int64_t end = p + 1 < phases_.size() ? phases_[p + 1].first : kManyRounds;
      if (p > 0) points.push_back(first);
      for (const std::int64_t point : phases_[p].topology->turning_points()) {
        if (point > 0 && point < end - first) points.push_back(first + point);
      }
    }
    return points;
  }
  [[nodiscard]] bool directed() const override {
    return std::ranges::any_of(phases_,
                               [](const auto& phase) { return phase.topology->directed(); });
  }

 private:
  /// The phases in the order of `first`, from 0 on.
  std::vector<PhaseOfRun> phases_;
};

}  // namespace

std::unique_ptr<Topology> make_phases(const World& world, const Options& section,
                                      std::span<const TopologyEntry> own) {
  const std::vector<Options> parts = section.named_sections("phases");
  std::vector<PhaseOfRun> result;
  std::int64_t first = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Options& part = parts[p];
    result.push_back({first, read_part(part.read(phases::kTopology), world, own)});
    if (p + 1 == parts.size()) {
      if (part.has("until")) part.fail("until", "the last phase has no end; leave this key out");
      break;
    }
    IntegerOption until = phases::kUntil;
    until.rule.min = first + 1;
    first = part.read(until);
  }
  return std::make_unique<Phases>(std::move(result));
}

}  // namespace gossamer
