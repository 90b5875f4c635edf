#include "topology/edge_weights.hpp"

#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

class WithEdgeWeights final : public Topology {
 public:
  WithEdgeWeights(std::shared_ptr<const Topology> base, EdgeWeight weight)
      : base_(std::move(base)), weight_(std::move(weight)) {}

  [[nodiscard]] std::string name() const override {
    return concat(base_->name(), " with other weights");
  }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return std::nullopt; }
  [[nodiscard]] Round round(std::int64_t k) const override {
    Round round = base_->round(k);
    if (!round.arcs.empty()) {
      throw ConfigError(concat("with_edge_weights: round ", k, " of ", base_->name(),
                               " has a weight for each message, allowed: rounds of pairs and "
                               "groups, as those of ring or complete"));
    }
    for (Edge& edge : round.edges) {
      if (edge.ranks.size() < 2) continue;
      const double weight = weight_(edge, k);
      // Written so that what is not a number is refused as well.
      if (!(weight >= 0.0 && weight <= 1.0)) {
        throw ConfigError(concat("with_edge_weights: the edge {", join(edge.ranks, ", "),
                                 "} has the weight ", weight, " in round ", k,
                                 ", allowed: a number from 0 to 1"));
      }
      edge.weight = weight;
    }
    return round;
  }
  [[nodiscard]] std::vector<std::int64_t> turning_points() const override {
    return base_->turning_points();
  }

 private:
  std::shared_ptr<const Topology> base_;
  EdgeWeight weight_;
};

}  // namespace

std::unique_ptr<Topology> with_edge_weights(std::shared_ptr<const Topology> topology,
                                            EdgeWeight weight) {
  if (!topology || !weight) {
    throw ConfigError("with_edge_weights needs a topology and a function for the weights");
  }
  return std::make_unique<WithEdgeWeights>(std::move(topology), std::move(weight));
}

EdgeWeight adaptive_factor(double a) {
  return adaptive_factor(std::make_shared<const ChangingFactor>(a));
}

void ChangingFactor::change(double a, std::int64_t k) {
  if (!(a >= 0.0 && a <= 1.0)) {
    throw ConfigError(concat("adaptive_factor: ", a, ", allowed: a number from 0 to 1"));
  }
  require_round_number(k);
  factors_.erase(factors_.lower_bound(k), factors_.end());
  factors_.emplace(k, a);
}

double ChangingFactor::at(std::int64_t k) const {
  require_round_number(k);
  return std::prev(factors_.upper_bound(k))->second;
}

EdgeWeight adaptive_factor(std::shared_ptr<const ChangingFactor> factor) {
  return [factor = std::move(factor)](const Edge& edge, std::int64_t k) {
    return 1.0 - factor->at(k) * (1.0 - edge.weight);
  };
}

}  // namespace gossamer
