#pragma once
// What a user asks a plan for, and a row of the plan.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/lab/plan/iteration_model.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/algorithms/plug_ins.hpp"
#include "optim/codec.hpp"
#include "optim/optimizer.hpp"
#include "topology/spectrum.hpp"

namespace gossamer::apps {

/// A row counts the rounds until the ranks' distance from their mean has shrunk by this factor.
inline constexpr double kPlannedTarget = 1e-3;

struct PlanOptions {
  /// make_plan() chooses the numbers of steps itself.
  StepModel model = {};
  /// Seconds that communication may add to a step, divided by the seconds of a step without it.
  double budget = 0.1;
  /// The models lie on GPUs, where some algorithms cannot run.
  bool on_gpu = false;
  /// The algorithms of the rows; empty: all ways. An algorithm without options has its ways.
  std::vector<AlgorithmChoice> algorithms = {};
  /// The codec of the rows. Null: each way has its own codec, and other algorithms send float32
  /// elements.
  const Codec* codec = nullptr;
  /// The rows have float32 elements alone. Not together with `codec`.
  bool is_plain = false;
  /// The optimizer, whose states some algorithms send; null: AdamW.
  std::shared_ptr<const Optimizer> optimizer = {};
  /// Names may mean these rows, too. The plan has a row for each of these topologies that fits.
  PlugIns own = {};
};

struct PlanRow {
  /// The name of a way, such as `outer in pairs`, or an algorithm with its options.
  std::string exchange = {};
  /// A topology with its options, as `base-k, k: 3`; empty: none.
  std::string topology = {};
  std::string codec = {};
  /// Steps after which the exchanges of a bucket repeat; 1: every step has one.
  std::int64_t every = 1;
  /// Steps that an exchange may travel; 0: ranks wait in the step that starts it.
  std::int64_t late = 1;
  StepPrediction step = {};
  /// Seconds of a step without communication, divided by the seconds of this step.
  double efficiency = 0.0;
  /// Seconds that an exchange of the whole model takes, and that `late` steps without
  /// communication do.
  double exchange_s = 0.0;
  double allowed_s = 0.0;
  /// True: the steps are within the budget.
  bool fits = false;
  /// How far we expect the loss to end above that of all-reduce after equally many steps. Nothing:
  /// we have measured nothing like it.
  std::optional<double> expected_gap = std::nullopt;
  /// Rounds to kPlannedTarget. Nothing: the ranks never come so near, or the number is unknown.
  std::optional<RoundCount> rounds = std::nullopt;
  /// The sections of a configuration.
  std::string yaml = {};

  /// False: we expect the ranks to lose as much without any exchange.
  [[nodiscard]] bool helps() const;
  /// Returns a text such as `outer of all, topk, every 2`.
  [[nodiscard]] std::string label() const;
};

}  // namespace gossamer::apps
