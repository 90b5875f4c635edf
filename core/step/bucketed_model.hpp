#pragma once
// The parameters of a model in buckets, for every framework that has tensors: LibTorch's wrapper in
// core/torch, and Python's. In the first step a BucketedModel notes the order in which gradients
// arrive. Ranks may use different parts of a model, so all ranks take the order of rank 0.
// Parameters that rank 0 has not used follow, in the order of the next rank that has used them.
// Then the model cuts buckets, and the framework moves its parameters into their blocks. The model
// owns the pipeline. If it has no size for buckets, the first steps try several.
//
// Protocol: in the first step, call arrived() for each gradient, then make_plan(), then start(),
// then go on as in every step. In each step, call offer() for each gradient, then finish_step().
// Collective calls, made by every rank at the same step: the constructor's owner says which; those
// are make_plan(), start(), finish_step(), replan(), switch_to(), resume(), visit(). Where ranks
// may be lost (Communicator::is_elastic()), a PeerLost leaves neither make_plan() nor start(): the
// first step goes on alone, as every step does.
//
// Errors: what Pipeline throws, and ConfigError for ranks that differ. Thread safety: that of
// Pipeline.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/state_visitor.hpp"
#include "comm/communicator.hpp"
#include "core/bucket/bucket_tuner.hpp"
#include "core/state/row_major_visitor.hpp"
#include "core/step/pipeline.hpp"

namespace gossamer {

class BucketedModel {
 public:
  struct Options {
    /// Pipeline::Config::after_update is the host's.
    Pipeline::Config pipeline = {};
    /// Bytes at which a bucket closes; equal on all ranks. 0: the first steps try several sizes,
    /// and training goes on with the one that had the shortest steps (bucket_tuner.hpp).
    std::int64_t bucket_bytes = std::int64_t{25} * 1024 * 1024;
    /// Takes warnings and news.
    Logger logger = {};
  };

  /// What a framework does with its tensors.
  class Host {
   public:
    Host() = default;
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;
    virtual ~Host() = default;
    /// Moves the parameters into new memory for the buckets of a plan, with their values.
    virtual std::vector<ParameterMemory> move_parameters(const BucketPlan& plan) = 0;
    /// All parameters lie in the memory of the last move, and the pipeline uses it.
    virtual void parameters_have_moved() = 0;
    /// Waits until no exchange is under way. What others have written to the parameters since the
    /// last step counts from here on.
    virtual void settle_parameters() = 0;
    /// A bucket has been updated: its gradients are used up.
    virtual void after_update(const BucketSpec& spec) = 0;
  };

  /// `communicator` and `host` must outlive the model. The pipeline's stream must, too.
  BucketedModel(Communicator& communicator, Options options, std::vector<ParameterInfo> parameters,
                Host& host);

  [[nodiscard]] const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  /// The buckets; empty before make_plan().
  [[nodiscard]] const BucketPlan& plan() const { return plan_; }
  [[nodiscard]] bool has_plan() const { return !plan_.buckets.empty(); }
  /// Null before start().
  [[nodiscard]] Pipeline* pipeline() const { return pipeline_.get(); }
  /// Declared indices, in the order in which gradients arrived in the first step: this rank's order
  /// before make_plan(), and the order of all ranks from then on.
  [[nodiscard]] const std::vector<std::int64_t>& arrival_order() const { return arrival_order_; }

  /// In the first step: a gradient has arrived. Each parameter once.
  void arrived(std::int64_t parameter);
  /// Collective. Takes one order of arrival for all ranks, and cuts buckets.
  void make_plan();
  /// Collective. Has the parameters moved, and makes the pipeline.
  void start();
  /// Gives a gradient to the pipeline; see Pipeline::gradient_ready().
  void offer(std::int64_t parameter, const ConstBlock& gradient);
  /// Whether the parameter's gradient has been offered in this step; in the first step, has
  /// arrived.
  [[nodiscard]] bool is_offered(std::int64_t parameter) const {
    return offered_[static_cast<std::size_t>(parameter)];
  }
  [[nodiscard]] const std::vector<bool>& offered() const { return offered_; }
  /// Forgets what has been offered, without a step.
  void forget_offered() { offered_.assign(offered_.size(), false); }
  /// Collective. Ends the step; may move the parameters into buckets of another size.
  void finish_step();

  void set_gradient_scale(double scale);
  /// Changes the clipping as Pipeline::set_clipping() does, also before there is a pipeline.
  void set_clipping(ClipMode mode, double norm);

  /// The step under way does not count for the choice of a size.
  void skip_trial();
  [[nodiscard]] bool tries_buckets() const { return tuner_.has_value(); }
  /// Collective, after start(). Goes on with buckets that close at `bucket_bytes`, and tries no
  /// sizes.
  void replan(std::int64_t bucket_bytes);
  /// Collective, between two steps or before the first one. As Pipeline::switch_to(). `check`
  /// throws ConfigError for what cannot run so. `average` makes the models equal before there is a
  /// pipeline.
  void switch_to(const AlgorithmSwitch& to,
                 const std::function<void(const ExchangeOptions& next)>& check,
                 const std::function<void()>& average);

  /// Between two steps, where ranks are lost: as Pipeline::detach().
  void detach();
  /// Makes up for a step that this rank lacks; see Pipeline::follow().
  void follow(std::int64_t num_steps) {
    if (pipeline_) pipeline_->follow(num_steps);
  }
  [[nodiscard]] bool holds_step() const { return pipeline_ && pipeline_->holds_step(); }
  /// Collective, as Pipeline::resume(), after detach() or on a new model that joins. Who joins
  /// takes the order of arrival from the others. `check` and `average` as in switch_to(); `average`
  /// is told this rank's weight in the mean. Throws ConfigError on all ranks if orders differ.
  void resume(const Pipeline::Resume& wanted,
              const std::function<void(const ExchangeOptions& next)>& check,
              const std::function<void(double weight)>& average);

  /// Collective, as Pipeline::visit(). Shows the visitor all state, in row-major order; `layouts`
  /// says where the elements of the parameters lie, by name. Loading before the first step makes
  /// the plan, and starts. Throws std::logic_error when saving before the first step.
  void visit(StateVisitor& visitor, std::map<std::string, MemoryLayout> layouts);
  /// Throws ConfigError if an algorithm cannot run so with this model's options.
  void check(const ExchangeOptions& exchange) const;

  /// What the functions of Pipeline with these names return, also before there is a pipeline.
  [[nodiscard]] const PipelineMetrics& metrics() const;
  [[nodiscard]] const Progress& progress() const;
  [[nodiscard]] double lr() const;
  [[nodiscard]] double last_lr() const;
  [[nodiscard]] double model_weight() const;
  [[nodiscard]] HostSharing host_sharing() const;

 private:
  /// Throws ConfigError on all ranks if what this rank says differs from what the others say.
  /// After a PeerLost goes on: resume() compares again.
  void compare(std::string_view what, const std::string& text);
  /// Collective. Makes the order of arrival that of all ranks. After a PeerLost this rank keeps its
  /// own order.
  void merge_orders();
  /// Takes an order of arrival, and makes the plan and the pipeline.
  void take_order(std::vector<std::int64_t> order);
  /// Shows the visitor the order of arrival; see visit().
  void visit_arrival_order(StateVisitor& visitor);
  [[nodiscard]] BucketPlan plan_of(std::int64_t bucket_bytes) const;
  [[nodiscard]] std::string names_without_gradient() const;
  /// Starts the trials of sizes, if there is anything to try.
  void start_trials();
  /// Collective. Goes on to the next size that is to be tried. When all have been tried, takes the
  /// best one.
  void try_buckets();
  /// Collective. Does nothing if the present buckets are cut alike.
  void recut(std::int64_t bucket_bytes);
  /// Tells once that the system keeps ranks of a host from sharing memory.
  void tell_of_messages();

  Communicator& communicator_;
  Options options_;
  std::vector<ParameterInfo> parameters_;
  Host& host_;
  BucketPlan plan_;
  std::unique_ptr<Pipeline> pipeline_;
  /// Sizes of buckets are being tried.
  std::optional<BucketTuner> tuner_;
  std::vector<std::int64_t> arrival_order_;
  /// By declared index.
  std::vector<bool> offered_;
  bool has_told_of_messages_ = false;
  /// After detach(), until resume().
  bool detached_ = false;
  double gradient_scale_ = 1.0;
  /// The answers before there is a pipeline.
  PipelineMetrics no_metrics_;
  Progress no_progress_;
};

}  // namespace gossamer
