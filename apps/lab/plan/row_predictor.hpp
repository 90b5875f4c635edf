#pragma once
// Predicts one row of a plan: what the ranks exchange in a step of it, and how long the step takes.

#include <cstdint>
#include <memory>
#include <string>

#include "apps/lab/plan/exchange_schedule.hpp"
#include "apps/lab/plan/iteration_model.hpp"
#include "apps/lab/plan/places.hpp"
#include "apps/lab/plan/plan_row.hpp"
#include "core/algorithms/algorithm.hpp"
#include "optim/codec.hpp"
#include "optim/optimizer.hpp"

namespace gossamer::apps {

/// What the ranks of a row exchange.
struct Exchanges {
  std::string name;
  AlgorithmChoice choice;
  const Codec* codec = nullptr;
  /// Null: no topology.
  const Place* place = nullptr;
  /// The steps between two averages of a rare way; 0: the algorithm's own period counts.
  std::int64_t every = 0;
  /// The run takes `train.recipe: allreduce`.
  bool takes_recipe = false;
};

class RowPredictor {
 public:
  /// `options` must outlive this object.
  explicit RowPredictor(const PlanOptions& options);

  [[nodiscard]] const Optimizer& optimizer() const { return *optimizer_; }
  /// Whether a prediction of a rare way would take too long.
  [[nodiscard]] bool follows_too_much(const Exchanges& exchanges) const;
  [[nodiscard]] ExchangeSchedule schedule_of(const Exchanges& exchanges) const;
  /// Ranks of a node in the schedule; exchanges that differ in their places alone have one schedule
  /// for each number.
  [[nodiscard]] static int node_size_of(const Exchanges& exchanges);
  /// Makes a row in which `expected_gap` and `exchange_s` are not set.
  [[nodiscard]] PlanRow row_of(const Exchanges& exchanges, const ExchangeSchedule& schedule) const;
  /// PlanRow::exchange_s.
  [[nodiscard]] double exchange_s(const Exchanges& exchanges,
                                  const ExchangeSchedule& schedule) const;

 private:
  /// The model with the buckets of these exchanges.
  [[nodiscard]] const StepModel& buckets_of(const Exchanges& exchanges) const {
    return exchanges.every > 0 ? large_ : options_.model;
  }
  /// The model with the steps that show the exchanges: whole periods of the algorithm, and of the
  /// topology too if there are not too many steps.
  [[nodiscard]] StepModel model_of(const Exchanges& exchanges, std::int64_t period) const;
  [[nodiscard]] std::string yaml_of(const Exchanges& exchanges) const;

  const PlanOptions& options_;
  /// The model of steps with rare exchanges.
  StepModel large_;
  std::shared_ptr<const Optimizer> optimizer_;
  double local_s_ = 0.0;
};

}  // namespace gossamer::apps
