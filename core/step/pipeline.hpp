#pragma once
// The engine that trains the parameters of one model, for every framework that has tensors.
// Gradients arrive one by one. When the last gradient of a bucket has arrived, the pipeline asks
// the algorithm for the blocks to mix in. Then it runs the sweep: mixing, clipping and the
// optimizer's rule in one pass over memory. Afterwards the algorithm starts the next exchange. On a
// stream that lags behind, neighbouring small buckets make these steps together
// (core/bucket/update_groups.hpp).
//
// First step: the pipeline notes the order in which gradients arrive, cuts buckets
// (bucket_planner.hpp), and has its host move the parameters into their blocks. Call arrived() for
// each gradient, then make_plan(), then start(), then go on as in every step. A caller that has cut
// buckets itself gives them to the constructor instead.
//
// Protocol per step: call gradient_ready() for every parameter that has a gradient, in any order,
// then finish_step(). finish_step() also handles the incomplete buckets: a parameter without a
// gradient is mixed, not updated. The pipeline handles buckets in bucket order, the same on every
// rank, so ranks cannot wait for one another in a circle. Every rank must make the same number of
// steps, unless the algorithm is asynchronous. Every rank must call drain() before the last rank
// leaves. Under an asynchronous algorithm drain() is collective, and mixes in what has arrived.
//
// Collective calls, made by every rank at the same step: make_plan(), start(), finish_step(),
// visit(), visit_row_major(), replan(), switch_to(), resume(), and the constructor with buckets.
//
// State: state() says where a pipeline is, and PipelineState lists what each state allows.
//
// A caller that writes parameters itself calls drain(), writes them, and calls forget_arrived().
// The next step then mixes nothing, because the blocks that have arrived belong to the old
// parameters.
//
// Between two steps, replan() moves the parameters and all state into other buckets, and
// switch_to() goes on with another algorithm or topology.
//
// Survival: where Communicator::is_elastic(), a PeerLost does not end a step. The step goes on
// without exchanges: blocks that have not arrived are not mixed in, and the optimizer updates as
// usual. Later steps run in the same way, until resume() starts the algorithm anew among the
// remaining ranks:
//
//   communicator.check() throws PeerLost, or a collective call between two steps does
//   detach(); communicator.elastic()->reconfigure(steps);
//   most = the most steps that a member of the new world has made (an all-gather)
//   for each step that is missing: catch_up(most), and the step; resume()
//
// Commits: an algorithm whose ranks have equal models after every step (allreduce) must update on
// all ranks or on none. Where communicators are elastic, a step has these stages:
//
//   1. The ranks sum the gradients.
//   2. The ranks meet. A rank that passes this meeting knows that all ranks have the sums.
//   3. Each rank updates its parameters.
//
// The step stays uncommitted on a rank that loses a peer before stage 3. There finish_step()
// returns without an update, the gradients stay, and a gradient of the next step throws PeerLost.
// The number of steps that a rank gives to reconfigure() includes its uncommitted step. The ranks
// end the uncommitted step in one of two ways:
//
// - Some rank has passed the meeting: the ranks with an uncommitted step update with the sums that
//   they have, in catch_up() or resume().
// - No rank has passed the meeting: resume() makes the step again, from the sums of the gradients
//   that the remaining ranks have kept.
//
// Example with the ranks 0, 1 and 2: rank 2 dies in stage 1 of step 9, so step 9 stays uncommitted
// on ranks 0 and 1. The two ranks agree on a world of two, and resume() sums their two gradients
// and updates.
//
// Where a rank may die while pipelines are made, the caller makes them with `begins_detached` and
// calls resume().
//
// Streams: all work on memory goes to one stream, in the order of the calls. On a GPU, `outer` with
// a codec uses a stream of the host as well (outer_averages.hpp). Each of the two streams waits for
// the results that it needs from the other stream. On a stream that lags behind (a GPU's), the code
// that writes gradients or reads parameters must do so in the stream's order. The first call of a
// step waits until the pipeline knows how the last step ended, so the host is never more than one
// step ahead.
//
// The host waits for exchanges that end on the host. For an exchange of NCCL the stream waits, and
// the host does not, except in these cases:
//
// - `allreduce` and `node_gossip` wait for the sums of a bucket, to see which ranks have used a
//   parameter.
// - `relay` waits for the messages of a bucket, to see how many ranks are in their sums.
// - Under the codecs int8 and int4 the ranks count votes in every eighth step (grid_lane.hpp).
// - Under a codec `outer` reads a flag in every sum of moves.
//
// Thread safety: only the thread that runs the backward pass may call. Errors: CommError from
// exchanges, NonFiniteError for gradients (see gradient_policy.hpp), ConfigError from the
// constructor, std::logic_error for a broken protocol.

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/host_stream.hpp"
#include "base/log.hpp"
#include "base/timeline.hpp"
#include "comm/communicator.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/algorithms/pipeline_metrics.hpp"
#include "core/bucket/bucket.hpp"
#include "core/bucket/gradient_policy.hpp"
#include "core/bucket/update_groups.hpp"
#include "core/exchange/host_slots.hpp"
#include "core/state/row_major_visitor.hpp"
#include "core/step/algorithm_switch.hpp"
#include "core/step/bucket_planner.hpp"
#include "core/step/parameter_host.hpp"
#include "core/step/recipe.hpp"
#include "core/step/uncommitted_step.hpp"
#include "optim/schedule.hpp"

namespace gossamer {

class PeerLanes;

/// The states of a pipeline. Whether ranks are lost (Pipeline::is_detached()) is independent of the
/// state.
enum class PipelineState {
  /// Before start(): there are no buckets. arrived() and make_plan() are allowed.
  kTracing,
  /// The pipeline is between two steps.
  kReady,
  /// Gradients of a step have arrived, and finish_step() has not been called.
  kInStep,
  /// The last step has no update yet, because ranks are lost. detach(), catch_up() and resume() are
  /// allowed.
  kUncommitted,
  /// A replan(), a switch_to() or a resume() has failed half way. Every step throws.
  kBroken,
};

class Pipeline {
 public:
  struct Config {
    ExchangeOptions exchange = {};
    /// The rule of an update; null where `external_optimizer` is given.
    std::shared_ptr<const Optimizer> optimizer = {};
    /// The optimizers that parameters name (ParameterInfo::optimizer).
    std::vector<std::shared_ptr<const Optimizer>> group_optimizers = {};
    /// The caller's own rule in place of an optimizer. The pipeline then neither holds nor saves
    /// states of the rule.
    ExternalOptimizer external_optimizer = {};
    /// True: the pipeline calls `external_optimizer` once for all buckets, after it has mixed the
    /// last bucket of a step. No update then begins before the backward pass is over.
    bool rule_sees_whole_step = false;
    std::shared_ptr<const Schedule> schedule = {};
    GradientOptions gradients = {};
    /// The stream of all work on memory; it must outlive the pipeline. Null: the pipeline has a
    /// stream of its own, which works inside the call.
    Stream* stream = nullptr;
    SimdPath simd = best_simd_path();
    /// Number of threads that share mixing and updates, the caller included.
    int num_threads = 1;
    /// Makes matrices orthogonal for optimizers that ask for it (BlockUpdate::orthogonalize).
    Orthogonalize orthogonalize = {};
    /// Records waits, updates and messages; null: nothing is recorded. On a GPU, updates and the
    /// waits for NCCL last as long in the timeline as the host takes to give the work to the
    /// stream. The update of a group of buckets has the number of its first bucket.
    std::shared_ptr<Timeline> timeline = {};
    /// True: the pipeline exchanges nothing before resume(). The constructor with buckets is not
    /// collective then.
    bool begins_detached = false;
    /// Bytes at which a bucket closes; equal on all ranks. 0: the first steps try several sizes,
    /// and training goes on with the size that had the shortest steps (bucket_tuner.hpp).
    std::int64_t bucket_bytes = std::int64_t{25} * 1024 * 1024;
    /// The most bytes of several buckets that are updated together; equal on all ranks.
    std::int64_t group_bytes = kGroupBytes;
    /// Steps between two means of the model's buffers, which the ParameterHost makes; 0: no means.
    /// Some algorithms refuse such means.
    std::int64_t average_buffers_every = 0;
    /// The ranks whose parameters are shards of one model, this rank among them: global clipping is
    /// by the norm of all their gradients. Null: this rank's parameters are a whole model. As
    /// `everyone`, it must outlive the pipeline.
    Communicator* shards = nullptr;
    /// The ranks of all shards of all models, which skip steps together. Null: the ranks of the
    /// pipeline's communicator.
    Communicator* everyone = nullptr;
    /// Takes warnings and news.
    Logger logger = {};

    /// The setting in which the algorithm of `wanted` is to run, as far as this configuration says.
    /// `num_ranks`: 0 where the number of ranks is not known yet. `is_elastic`:
    /// Communicator::is_elastic().
    [[nodiscard]] AlgorithmSetting setting(const ExchangeOptions& wanted, int num_ranks,
                                           bool is_elastic) const;
  };

  /// `communicator` and `host` must outlive the pipeline. The first step traces and plans.
  Pipeline(Communicator& communicator, Config config, std::vector<ParameterInfo> parameters,
           ParameterHost& host);
  /// Collective. Makes a pipeline without a host for a caller that has cut the buckets. `memory`
  /// holds the initial parameters of each bucket of `plan`.
  Pipeline(Communicator& communicator, Config config, std::vector<ParameterInfo> parameters,
           const BucketPlan& plan, std::vector<ParameterMemory> memory);
  /// Waits for the stream's work; drops errors.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  [[nodiscard]] PipelineState state() const;
  /// Whether the parameters lie in buckets: start() was called, or the caller gave the buckets.
  [[nodiscard]] bool has_started() const { return step_.has_started; }
  [[nodiscard]] const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  /// The buckets; empty before make_plan().
  [[nodiscard]] const BucketPlan& plan() const { return planner_.plan(); }
  [[nodiscard]] bool has_plan() const { return planner_.has_plan(); }
  /// Declared indices, in the order in which gradients arrived in the first step: this rank's order
  /// before make_plan(), and the order of all ranks from then on.
  [[nodiscard]] const std::vector<std::int64_t>& arrival_order() const { return planner_.order(); }
  /// Throws ConfigError if the algorithm of `wanted` cannot run with this configuration.
  void check(const ExchangeOptions& wanted) const;

  /// In the first step: the gradient of `parameter`, a declared index, has arrived. Call it once
  /// for each parameter.
  void arrived(std::int64_t parameter);
  /// Collective. Takes one order of arrival for all ranks, and cuts buckets. Where the communicator
  /// is elastic, neither this call nor start() throws PeerLost.
  void make_plan();
  /// Collective. Has the parameters moved into the buckets of plan(), and makes the algorithm.
  void start();
  /// Whether the parameter's gradient has arrived in this step.
  [[nodiscard]] bool is_offered(std::int64_t parameter) const {
    return places_[static_cast<std::size_t>(parameter)].is_offered;
  }
  /// The value of is_offered() for each parameter, by declared index.
  [[nodiscard]] std::vector<bool> offered() const;
  /// Makes is_offered() false for all parameters, without a step.
  void forget_offered();

  /// Tells the pipeline that the gradient of a parameter has arrived. `parameter` is a declared
  /// index. The memory of `gradient` must stay until the parameter's update is done.
  void gradient_ready(std::int64_t parameter, ConstBlock gradient);
  /// Ends the step: updates all remaining buckets. While the pipeline tries sizes of buckets, it
  /// may move the parameters into buckets of another size.
  void finish_step();
  /// Waits for all exchanges under way and for the stream. The next step still mixes in the blocks
  /// that have arrived. Does nothing before start().
  void drain();
  /// Makes the next step mix nothing. Call it after drain().
  void forget_arrived();

  /// Shows the visitor all state of training, per parameter. Drains first. Loading is collective:
  /// at its end the ranks repeat the exchanges that were under way when the state was saved. Saving
  /// is collective if the ranks share the optimizer's states (node_gossip with `shard: optimizer`):
  /// the ranks gather the states of one bucket after the other, so each rank saves all states.
  /// Ranks, algorithm, optimizer and parameters must be the same as at saving; bucket sizes may
  /// differ.
  void visit(StateVisitor& visitor);
  /// Shows the visitor the content of a checkpoint: the order of arrival, and the state of visit()
  /// in row-major order. `layouts` says, by the parameters' names, where their elements lie.
  /// Loading before the first step also calls make_plan() and start(). Saving before the first step
  /// throws std::logic_error.
  void visit_row_major(StateVisitor& visitor, std::map<std::string, MemoryLayout> layouts);

  /// Collective, between two steps, after start(). Goes on with buckets that close at
  /// `bucket_bytes`, and stops trying sizes.
  void replan(std::int64_t bucket_bytes);
  /// Leaves the step under way out of the choice of a bucket size.
  void skip_trial() { planner_.skip_trial(); }
  [[nodiscard]] bool tries_buckets() const { return planner_.tries_sizes(); }
  /// Collective, between two steps. Drains, and replaces the buckets by the buckets of `plan`,
  /// which holds the same parameters. `memory` is the new memory of the parameters, as in the
  /// constructor; the call overwrites its values. Training continues as if it had been saved, and
  /// loaded into a pipeline with the buckets of `plan`. During the call, host memory holds a copy
  /// of all state.
  ///
  /// Throws std::logic_error inside a step. Also throws std::logic_error where ranks may be lost
  /// (Communicator::is_elastic()), because the state belongs to no pipeline during the call. Throws
  /// what drain() and visit() throw. After an error the pipeline is unusable.
  void replan(const BucketPlan& plan, std::vector<ParameterMemory> memory);

  /// Collective, between two steps or before the first one. Goes on with another algorithm or
  /// topology; algorithm_switch.hpp lists the state that stays. Codec, metrics and buckets stay as
  /// well. While the pipeline tries sizes of buckets, the trials begin again.
  ///
  /// Throws ConfigError on all ranks in three cases: the ranks ask for different things, or at
  /// different steps, or the algorithm cannot run in this setting. Training may then go on as
  /// before. Throws std::logic_error inside a step, and what drain() throws. After a CommError the
  /// pipeline is unusable.
  void switch_to(const AlgorithmSwitch& to);

  /// Between two steps or before the first one, where ranks are lost: drops all exchanges, and
  /// everything that belongs to the communicator's world. Until resume() steps exchange nothing,
  /// and drain() throws PeerLost.
  void detach();
  /// Tells the pipeline that the other ranks have made `num_steps` steps. Call it after detach()
  /// and Elastic::reconfigure(), before each step that this rank lacks.
  void catch_up(std::int64_t num_steps);
  /// Whether state() is PipelineState::kUncommitted.
  [[nodiscard]] bool has_uncommitted_step() const { return uncommitted_.is_pending(); }
  /// True: steps exchange nothing, because ranks are lost or detach() was called.
  [[nodiscard]] bool is_detached() const { return detached_ != nullptr; }
  /// Throws PeerLost if has_uncommitted_step().
  void check_committed() const;
  /// The way in which a rank goes on in a new world.
  struct Resume {
    /// The algorithm and topology of the new world, the same on all ranks. With `average`, all
    /// ranks go on from the mean of their parameters and optimizers' states. Where a rank joins,
    /// the ranks always average.
    AlgorithmSwitch to = {};
    /// True: this rank joins. It takes over the other ranks' number of steps, and its own
    /// parameters and states have no weight in the mean.
    bool joins = false;
  };
  /// Collective of the remaining ranks and of the ranks that join. A remaining rank calls it after
  /// detach(), Elastic::reconfigure(), and the steps that it lacked. The pipeline of a rank that
  /// joins begins detached. The algorithm starts anew on the topology, as after switch_to(). A rank
  /// that joins takes the order of arrival from the other ranks. After a PeerLost the caller calls
  /// detach(), reconfigure() and resume() again. Throws ConfigError on all ranks if the algorithm
  /// cannot run on the topology, or if orders of arrival differ.
  void resume(const Resume& wanted);

  /// Sets the numbers that a parameter's updates use from the next update on, in place of the
  /// schedule and of ParameterInfo::weight_decay. The settings stay when buckets change.
  /// `parameter` is a declared index. Where ranks share the optimizer's states (node_gossip with
  /// `shard: optimizer`), all ranks must give the same settings. Throws std::logic_error for an
  /// optimizer of another kind than the parameter's.
  void set_settings(std::int64_t parameter, ParameterSettings settings);
  /// Goes on as if a parameter had been updated `num_updates` times. The owner of the optimizer's
  /// states calls this between two steps. `parameter` is a declared index.
  void set_num_updates(std::int64_t parameter, std::int64_t num_updates);

  /// Sets the factor that gradients are multiplied by before clipping and update; see
  /// GradientPolicy.
  void set_gradient_scale(double scale) { policy_.set_scale(scale); }
  /// Between two steps: sets how gradients are clipped from the next step on; see GradientPolicy.
  /// Throws ConfigError.
  void set_clipping(ClipMode mode, double norm) { policy_.set_clipping(mode, norm); }
  /// The factor on the recipe's largest norm in the next step, which under Recipe::kMeasured the
  /// caller applies (recipe.hpp). 1 where the recipe is the run's own.
  [[nodiscard]] double recipe_factor() const { return recipe_.ratio(); }
  /// The L2 norm of the last step's gradients before clipping: this rank's own, or the mean under
  /// all-reduce. Waits like metrics(). 0 before the first step.
  [[nodiscard]] double gradient_norm();

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Where the policy is NonFinite::kKeep: names the first gradient since the last call that was
  /// not finite; empty: all were finite. Waits like metrics().
  [[nodiscard]] std::string take_nonfinite();
  /// Waits until the pipeline knows how the last step ended. Throws NonFiniteError and CommError.
  [[nodiscard]] const PipelineMetrics& metrics();
  /// Waits like metrics().
  [[nodiscard]] const Progress& progress();
  /// The learning rate of the next step. Waits like metrics().
  [[nodiscard]] double lr();
  /// The learning rate of the last step; before start(), of the first one. Never waits.
  [[nodiscard]] double last_lr() const;
  [[nodiscard]] Stream& stream() { return stream_; }
  /// This rank's weight in the mean of all ranks' models; 1 except in directed topologies and where
  /// ranks are asynchronous. Call it between two steps, and where ranks are asynchronous after
  /// drain().
  [[nodiscard]] double model_weight() const;
  /// How the ranks of a host read each other's blocks.
  [[nodiscard]] HostSharing host_sharing() const;
  /// The memory of all parameters, bucket by bucket.
  [[nodiscard]] std::vector<ParameterMemory> memory() const;

 private:
  /// Makes all members that need no buckets.
  Pipeline(Communicator& communicator, Config config, std::vector<ParameterInfo> parameters,
           ParameterHost* host);

  /// The pipeline's record of one parameter, by declared index.
  struct Place {
    std::size_t bucket = 0;
    std::int64_t entry = 0;
    /// The gradient has arrived in this step.
    bool is_offered = false;
    /// The settings that set_settings() was given.
    std::optional<ParameterSettings> settings = {};
  };

  /// The pipeline's record of the present step and of the last one.
  struct StepStatus {
    /// Number of buckets of this step for which gradients_ready() was called.
    std::size_t num_ready = 0;
    bool is_open = false;
    bool has_started = false;
    bool has_told_of_messages = false;
    /// True if the last step's exchanges are under way, or have arrived and are not forgotten.
    bool has_sent = false;
    /// The learning rate of the last step.
    double lr = 0.0;
    /// The norm of the last step's gradients.
    double gradient_norm = 0.0;
    /// The error with which the last step ended.
    std::exception_ptr failure = nullptr;
    /// The first gradient that was not finite since take_nonfinite().
    std::string nonfinite = {};
  };

  /// The members that belong to the communicator's present world; empty while the pipeline is
  /// detached.
  struct InWorld {
    std::unique_ptr<PeerLanes> lanes;
    /// Memory that the communicator keeps for the pipeline's own sums (Communicator::reserve()).
    std::shared_ptr<void> reserved;
    /// The algorithm uses the lanes, and must go before them.
    std::unique_ptr<Algorithm> algorithm;
  };

  /// Tells the logger once that the system keeps ranks of a host from sharing memory.
  void tell_of_messages();
  /// Warns of options of the algorithm that are likely to ruin the run.
  void warn_of_algorithm() const;
  /// Waits until no exchange is under way, and takes the values that other code has written to the
  /// parameters.
  void drain_parameters();
  /// Collective. Goes on with buckets that close at `bucket_bytes`. Does nothing if the present
  /// buckets close there.
  void recut(std::int64_t bucket_bytes);
  /// Collective: resume() before the first step.
  void resume_tracing(const Resume& wanted);
  /// Collective: resume() of a pipeline that has started.
  void resume_training(const Resume& wanted);
  /// Collective: goes on with other options of exchange, after start() and drain_parameters().
  void change_algorithm(bool averages, ExchangeOptions next);
  /// Collective. Takes an order of arrival, cuts buckets, and starts.
  void start_in(std::vector<std::int64_t> order);
  /// Runs a part of a step with the algorithm, or after a PeerLost with an algorithm that exchanges
  /// nothing.
  template <class Part>
  void run_or_detach(const Part& part);
  /// Makes this step and later steps exchange nothing.
  void stop_exchanging();
  /// Whether ranks update only when all of them have the sums of the step.
  [[nodiscard]] bool commits() const;
  /// Collective: meets the other ranks when all gradients of the step are there. Returns false if
  /// the step stays uncommitted.
  [[nodiscard]] bool commit();
  /// Makes the updates of the uncommitted step with the sums that all ranks had, or alone.
  void commit_now();
  /// Puts this rank's own gradients in place of the sums that have replaced them.
  void restore_gradients();
  /// Collective: ends the uncommitted step where another rank has ended it. Returns the number of
  /// ranks whose gradients the sums need if the step must be made again, else 0.
  std::int64_t end_uncommitted_step(bool joins);
  /// Collective: makes the uncommitted step again, from the gradients of `num_ranks` ranks.
  void remake_step(std::int64_t num_ranks);
  /// The factor that turns the gradients of this step into means.
  [[nodiscard]] double mean_factor() const;
  /// The algorithm of the present step.
  [[nodiscard]] Algorithm& algorithm() const {
    return detached_ ? *detached_ : *in_world_.algorithm;
  }
  /// Connects the communicator of a new world, and makes the lanes in it.
  void make_lanes();
  /// Collective, unless the pipeline begins detached: makes the buckets of plan(), their lanes and
  /// the algorithm.
  void build(bool begins_detached, std::vector<ParameterMemory> memory);
  /// Makes the buckets of plan(), and the algorithm's part for them.
  void make_buckets(std::vector<ParameterMemory> memory);
  void make_algorithm();
  void drop_algorithm();
  /// Throws std::logic_error if a gradient of the next step has arrived.
  void check_between_steps(std::string_view call) const;
  /// Throws CheckpointError for impossible numbers of steps.
  void check_progress() const;
  /// Collective: repeats the exchanges of the last step, with the number of that step. A rank that
  /// has forgotten them takes part as well, because another rank may not have forgotten.
  void repeat_exchanges();
  /// Makes all ranks equal: parameters and the optimizer's states become the means over the ranks,
  /// and counts become the largest count. `weight` is this rank's weight in the mean of the
  /// parameters, and `state_weight` its weight in the mean of states and numbers.
  void average_ranks(double weight, double state_weight = 1.0);
  /// Shows the visitor the numbers that decide on updates.
  void visit_numbers(StateVisitor& visitor);
  [[nodiscard]] bool defers() const {
    return commits() || config_.rule_sees_whole_step || algorithm().updates_at_end() ||
           policy_.defers();
  }
  /// Handles buckets in order, as long as the next one is ready.
  void advance();
  /// Lets the algorithm replace the gradients of a group, then inspects the new gradients.
  void finish_gradients(std::span<Bucket> group);
  /// Decides about the gradients of a group, mixes, updates, and starts the next exchanges.
  void update(std::span<Bucket> group);
  /// Updates all buckets of a step as update() does.
  void update_all();
  /// Decides about the gradients, mixes, and updates unless the rule is the caller's own. `group`
  /// is one of groups_.all.
  void mix_and_update(std::span<Bucket> group);
  /// Calls the caller's own rule for mixed buckets.
  void apply_external_optimizer(std::span<Bucket> buckets);
  /// Starts the next exchange of a bucket.
  void send(Bucket& bucket);
  /// Updates the buckets of a step in which updates wait for the end of the backward pass.
  void update_deferred();
  /// Whether deferred updates need no decision about the whole step.
  [[nodiscard]] bool updates_in_turn() const;
  /// Whether ranks that share states add up the norms of gradients.
  [[nodiscard]] bool completes_norms() const;
  /// Decides whether the step is skipped. All ranks decide together, unless each rank counts its
  /// own steps or ranks are lost.
  void decide_step();
  /// Lets the recipe measure the step's gradients, and follows what it has found.
  void follow_recipe();
  /// Makes the remaining updates, and ends the step unless it stays uncommitted.
  void end_step();
  /// Counts the step and prepares the next one, after all updates.
  void count_step();
  /// Mixes what the other ranks have sent, where the algorithm does so at the end of steps.
  void mix_at_end();
  /// Computes the squared norm of a gradient where the stream works inside the call. Returns false
  /// if the gradient is not finite and the policy is not to skip. On other streams returns true and
  /// does nothing.
  [[nodiscard]] bool inspect(Bucket& bucket, std::int64_t entry, const ConstBlock& gradient);
  /// Learns how the last step ended, once per step, and counts a skipped step. Where the policy is
  /// to abort, throws NonFiniteError in this call and in every later one.
  void close_step();
  /// Throws NonFiniteError, or notes it where the owner of the gradients decides.
  void refuse(const Bucket& bucket, std::int64_t entry, std::int64_t step, bool is_own);

  Config config_;
  std::vector<ParameterInfo> parameters_;
  /// The owner of the tensors; null where the caller has given the buckets.
  ParameterHost* host_;
  Communicator& communicator_;
  InlineStream inline_stream_;
  Stream& stream_;
  PipelineMetrics metrics_;
  Progress progress_;
  WorkerPool pool_;
  GradientPolicy policy_;
  RecipeControl recipe_;
  BucketPlanner planner_;
  std::vector<Bucket> buckets_;
  UpdateGroups groups_;
  std::vector<Place> places_;
  InWorld in_world_;
  /// Takes the place of the world's algorithm where ranks are lost.
  std::unique_ptr<Algorithm> detached_;
  UncommittedStep uncommitted_;
  StepStatus step_;
  /// The last member, so that the stream's work is done before any other member is destroyed.
  SynchronizedScope scope_;
};

}  // namespace gossamer
