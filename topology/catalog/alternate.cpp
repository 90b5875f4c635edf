// `alternate: [a, b, ...]`: topologies in turn, round by round. Each goes through its own rounds
// without a gap: round k is round k / m of topology k mod m, of m topologies.

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/sorted.hpp"
#include "base/text.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

class Alternate final : public Topology {
 public:
  explicit Alternate(std::vector<std::unique_ptr<Topology>> parts) : parts_(std::move(parts)) {}

  [[nodiscard]] std::string name() const override {
    std::vector<std::string> names;
    for (const auto& part : parts_) names.push_back(part->name());
    return concat("alternate [", join(names, ", "), "]");
  }
  [[nodiscard]] std::optional<std::int64_t> period() const override {
    std::int64_t common = 1;
    for (const auto& part : parts_) {
      const auto period = part->period();
      if (!period) return std::nullopt;
      common = rounds_times(common, *period / std::gcd(common, *period));
    }
    return rounds_times(common, std::ssize(parts_));
  }
  [[nodiscard]] std::vector<std::int64_t> turning_points() const override {
    std::vector<std::int64_t> points;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      for (const std::int64_t point : parts_[p]->turning_points()) {
        points.push_back(rounds_times(point, std::ssize(parts_)) + static_cast<std::int64_t>(p));
      }
    }
    sort_unique(points);
    return points;
  }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    const std::int64_t count = std::ssize(parts_);
    return parts_[static_cast<std::size_t>(k % count)]->round(k / count);
  }
  [[nodiscard]] bool directed() const override {
    return std::ranges::any_of(parts_, [](const auto& part) { return part->directed(); });
  }

 private:
  std::vector<std::unique_ptr<Topology>> parts_;
};

}  // namespace

std::unique_ptr<Topology> make_alternate(const World& world, const Options& section,
                                         std::span<const TopologyEntry> own) {
  std::vector<std::unique_ptr<Topology>> parts;
  for (const Options& part : section.named_sections("alternate")) {
    parts.push_back(read_part(part, world, own));
  }
  return std::make_unique<Alternate>(std::move(parts));
}

}  // namespace gossamer
