// `alternate: [a, b, ...]`: topologies in turn, round by round. Each goes through its own rounds
// without a gap: round k is round k / m of topology k mod m, of m topologies.

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

// Longer periods are as good as none.
constexpr std::int64_t kLongestPeriod = std::int64_t{1} << 40;

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
      if (!period || *period > kLongestPeriod) return std::nullopt;
      const std::int64_t factor = *period / std::gcd(common, *period);
      if (common > kLongestPeriod / factor) return std::nullopt;
      common *= factor;
    }
    return common * std::ssize(parts_);
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

std::unique_ptr<Topology> make_alternate(const World& world, const Options& section) {
  std::vector<std::unique_ptr<Topology>> parts;
  for (const Options& part : section.named_sections("alternate")) {
    parts.push_back(read_topology(part, world));
  }
  return std::make_unique<Alternate>(std::move(parts));
}

}  // namespace gossamer
