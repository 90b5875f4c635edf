// `every: {base: TOPOLOGY, period: H}`: a round of the base topology in every H-th round, nothing
// in the others. H - 1 rounds are sat out first.

#include <utility>

#include "base/text.hpp"
#include "topology/registry.hpp"
#include "topology/topology_options.hpp"

namespace gossamer {
namespace {

class Every final : public Topology {
 public:
  Every(std::unique_ptr<Topology> base, std::int64_t every, int world_size)
      : base_(std::move(base)), every_(every), rest_(complete_round({}, world_size)) {}

  [[nodiscard]] std::string name() const override {
    return concat("every {base: ", base_->name(), ", period: ", every_, "}");
  }
  [[nodiscard]] std::optional<std::int64_t> period() const override {
    const auto period = base_->period();
    if (!period) return std::nullopt;
    return rounds_times(*period, every_);
  }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    return k % every_ == every_ - 1 ? base_->round(k / every_) : rest_;
  }
  [[nodiscard]] std::vector<std::int64_t> turning_points() const override {
    std::vector<std::int64_t> points = base_->turning_points();
    for (std::int64_t& point : points) point = rounds_times(point, every_) + every_ - 1;
    return points;
  }
  [[nodiscard]] bool directed() const override { return base_->directed(); }

 private:
  std::unique_ptr<Topology> base_;
  std::int64_t every_;
  Round rest_;
};

}  // namespace

std::unique_ptr<Topology> make_every(const World& world, const Options& section,
                                     std::span<const TopologyEntry> own) {
  const Options options = section.section("every");
  auto base = read_part(options.read(every::kBase), world, own);
  const std::int64_t period = options.read(every::kPeriod);
  return std::make_unique<Every>(std::move(base), period, world.size);
}

}  // namespace gossamer
