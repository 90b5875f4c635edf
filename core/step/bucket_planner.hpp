#pragma once
// Cuts the parameters of a model into buckets, in the order in which their gradients arrive in the
// first step. Ranks may use different parts of a model, so all ranks take the order of rank 0.
// Parameters that rank 0 has not used follow, in the order of the next rank that has used them.
// Where no size of buckets is given, the first steps try several (bucket_tuner.hpp).
//
// Example with three ranks: gradients arrive on rank 0 in the order c, a; on rank 1 in the order
// b, a; rank 2 has no batch. All ranks take the order c, a, b.
//
// Protocol:
//   1. In the first step, call arrived() for each gradient, then make_plan(). A rank that loads a
//      state, or that joins others, calls take_order() and make_plan() instead.
//   2. The owner builds its buckets by plan(), and calls start_trials().
//   3. After every step, call next_size(). If it returns a size, build new buckets by cut(), and
//      tell them to set_plan().
//
// Not thread safe. Errors: ConfigError for ranks that differ, CommError.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/state_visitor.hpp"
#include "comm/communicator.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/bucket/bucket_plan.hpp"
#include "core/bucket/bucket_tuner.hpp"

namespace gossamer {

class BucketPlanner {
 public:
  /// `bucket_bytes`: the bytes at which a bucket closes; 0: the first steps try several sizes.
  BucketPlanner(std::int64_t bucket_bytes, Logger logger)
      : bucket_bytes_(bucket_bytes), logger_(std::move(logger)) {}

  /// Notes the next gradient of the first step. `parameter` is its declared index.
  void arrived(std::int64_t parameter) { order_.push_back(parameter); }
  /// Declared indices: this rank's order of arrival before make_plan(), the order of all ranks
  /// later.
  [[nodiscard]] const std::vector<std::int64_t>& order() const { return order_; }
  /// Shows the visitor the order of arrival. Returns the order that it has loaded, or this one.
  /// Throws CheckpointError for an order that `num_parameters` parameters cannot have.
  [[nodiscard]] std::vector<std::int64_t> visit(StateVisitor& visitor,
                                                std::int64_t num_parameters) const;
  void take_order(std::vector<std::int64_t> order) { order_ = std::move(order); }
  /// Collective of the ranks of a new world. Returns the order of rank 0, which a rank that joins
  /// takes; empty: no rank has an order. Throws ConfigError on all ranks if orders differ.
  [[nodiscard]] std::vector<std::int64_t> agree_on_order(Communicator& communicator) const;

  /// Collective. Takes one order for all ranks, and cuts buckets. `communicator` may be null: this
  /// rank then goes by its own order. After a PeerLost on an elastic communicator this rank goes by
  /// its own order as well, and the owner compares the orders later.
  void make_plan(Communicator* communicator, const std::vector<ParameterInfo>& parameters);
  /// The buckets; empty before make_plan().
  [[nodiscard]] const BucketPlan& plan() const { return plan_; }
  [[nodiscard]] bool has_plan() const { return !plan_.buckets.empty(); }
  void set_plan(BucketPlan plan) { plan_ = std::move(plan); }
  /// The buckets that close at `bucket_bytes`.
  [[nodiscard]] BucketPlan cut(const std::vector<ParameterInfo>& parameters,
                               std::int64_t bucket_bytes) const;
  /// Whether a plan has the same buckets as plan().
  [[nodiscard]] bool is_present(const BucketPlan& plan) const;

  /// Starts the trials of sizes under an algorithm, if no size is given and several sizes differ.
  void start_trials(const ExchangeOptions& exchange, const std::vector<ParameterInfo>& parameters);
  [[nodiscard]] bool tries_sizes() const { return tuner_.has_value(); }
  void end_trials() { tuner_.reset(); }
  /// The size with which trials begin.
  [[nodiscard]] static std::int64_t first_size();
  /// The step under way does not count for the choice of a size.
  void skip_trial() {
    if (tuner_) tuner_->skip_step();
  }
  /// Collective while sizes are tried. Tells that a step has ended. Returns the size of the next
  /// trial when a trial is over, and the best size when all are over.
  [[nodiscard]] std::optional<std::int64_t> next_size(Communicator& communicator);

 private:
  /// The order as text.
  [[nodiscard]] std::string order_text() const;
  /// Replaces this rank's order of arrival by the order of all ranks.
  void merge_orders(Communicator& communicator, std::size_t num_parameters);
  void warn_of_missing_gradients(const std::vector<ParameterInfo>& parameters) const;

  std::int64_t bucket_bytes_;
  Logger logger_;
  std::vector<std::int64_t> order_;
  BucketPlan plan_;
  std::optional<BucketTuner> tuner_;
};

}  // namespace gossamer
