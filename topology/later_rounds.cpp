#include "topology/later_rounds.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace gossamer {
namespace {

class LaterRounds final : public Topology {
 public:
  LaterRounds(std::shared_ptr<const Topology> base, std::int64_t first)
      : base_(std::move(base)), first_(first) {}

  [[nodiscard]] std::string name() const override {
    return concat(base_->name(), " from round ", first_);
  }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return base_->period(); }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    return base_->round(k + first_);
  }
  [[nodiscard]] std::vector<std::int64_t> turning_points() const override {
    std::vector<std::int64_t> points;
    for (const std::int64_t point : base_->turning_points()) {
      if (point > first_) points.push_back(point - first_);
    }
    return points;
  }
  [[nodiscard]] bool directed() const override { return base_->directed(); }

 private:
  std::shared_ptr<const Topology> base_;
  std::int64_t first_;
};

}  // namespace

std::shared_ptr<const Topology> from_round(std::shared_ptr<const Topology> topology,
                                           std::int64_t first) {
  require_round_number(first);
  if (first == 0) return topology;
  return std::make_shared<LaterRounds>(std::move(topology), first);
}

}  // namespace gossamer
