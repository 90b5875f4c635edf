#pragma once
// The engine that trains the parameters of one model, for every framework that has tensors.
// Gradients arrive one by one. When the last gradient of a bucket has arrived, the pipeline asks
// the algorithm for the blocks to mix in. Then it runs the sweep: mixing, clipping and the
// optimizer's rule in one pass over memory. Afterwards the algorithm starts the next exchange.
//
// First step: the pipeline notes the order in which gradients arrive, cuts buckets
// (bucket_planner.hpp), and has its host move the parameters into their blocks. Call arrived() for
// each gradient, then make_plan(), then start(), then go on as in every step. A caller that has
// buckets of its own gives them to the constructor instead.
//
// Protocol per step: call gradient_ready() for every parameter that has a gradient, in any order,
// then finish_step(). finish_step() also handles the incomplete buckets: a parameter without a
// gradient is mixed, not updated. The pipeline handles buckets in bucket order, the same on every
// rank, so that ranks cannot wait for one another in a circle. Every rank must make the same number
// of steps, unless the algorithm is asynchronous, and must call drain() before the last rank
// leaves. Under an asynchronous algorithm drain() is collective, and mixes in what has arrived.
//
// Collective calls, made by every rank at the same step: make_plan(), start(), finish_step(),
// visit(), visit_row_major(), replan(), switch_to(), resume(), and the constructor with buckets.
//
// PipelineState says where a pipeline is; its table has what each state allows.
//
// To write parameters from outside: drain(), write, forget_arrived(). The next step then mixes
// nothing, because what has arrived belongs to the old parameters.
//
// Between two steps, replan() moves the parameters and all state into other buckets, and
// switch_to() goes on with another algorithm or topology.
//
// Survival: where Communicator::is_elastic(), a PeerLost does not end a step. The step goes on
// without exchanges: what has not arrived is not mixed in, and the optimizer updates as usual. So
// do later steps, until resume() starts the algorithm anew among the ranks that are left:
//
//   communicator.check() throws PeerLost, or a collective call between two steps does
//   detach(); membership = communicator.elastic()->reconfigure(steps);
//   for each step that is missing: catch_up(membership.step), and the step; resume()
//
// Commits: an algorithm whose ranks have equal models after every step (allreduce) must update on
// all ranks or on none. Where communicators are elastic, a step has these stages:
//
//   1. The ranks sum the gradients.
//   2. The ranks meet. A rank that passes this meeting knows that all ranks have the sums.
//   3. Each rank updates its parameters.
//
// On a rank that loses a peer before stage 3 the step stays uncommitted: finish_step() returns
// without an update, the gradients stay, and a gradient of the next step throws PeerLost. An
// uncommitted step is included in the number of steps that reconfigure() takes. If any rank has
// passed the meeting, the ranks with an uncommitted step update with the sums that they have, in
// catch_up() or resume(). If no rank has passed it, resume() makes the step again: the surviving
// ranks sum the gradients that they have kept.
//
// Example with the ranks 0, 1 and 2: rank 2 dies in stage 1 of step 9, which stays uncommitted on
// ranks 0 and 1. They agree on a world of two, and resume() sums their two gradients and updates.
//
// Where a rank may die while pipelines are made, make them with `begins_detached`, and resume().
//
// Streams: all work on memory goes to one stream, in the order of the calls. On a GPU, `outer` with
// a codec uses a stream of the host as well (outer_averages.hpp); each of the two streams waits for
// what it needs of the other. On a stream that lags behind (a GPU's), the code that writes
// gradients or reads parameters must do so in the stream's order. The first call of a step waits
// until it is known how the step before ended, so the host is never more than one step ahead.
// The host waits for exchanges that end there; exchanges of NCCL are not waited for, with these
// exceptions. All-reduce and node gossip wait for the sums of a bucket to see which ranks have used
// a parameter. Relay waits for the messages of a bucket to see how many ranks are in their sums.
// Under the codecs int8 and int4 the votes are counted in every eighth step (grid_lane.hpp), and
// under a codec `outer` looks at a flag in every sum of moves.
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
#include "core/exchange/host_slots.hpp"
#include "core/state/row_major_visitor.hpp"
#include "core/step/algorithm_switch.hpp"
#include "core/step/bucket_planner.hpp"
#include "core/step/parameter_host.hpp"
#include "core/step/uncommitted_step.hpp"
#include "optim/schedule.hpp"

namespace gossamer {

class PeerLanes;

/// Where a pipeline is. Whether ranks are lost (Pipeline::is_detached()) is another question.
enum class PipelineState {
  /// Before start(): there are no buckets. arrived() and make_plan() are allowed.
  kTracing,
  /// Between two steps.
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
    /// Null where `external_optimizer` is given.
    std::shared_ptr<const Optimizer> optimizer = {};
    /// The optimizers that parameters name (ParameterInfo::optimizer).
    std::vector<std::shared_ptr<const Optimizer>> group_optimizers = {};
    /// The caller's own rule in place of an optimizer. The pipeline then knows no states of it.
    ExternalOptimizer external_optimizer = {};
    /// Whether `external_optimizer` is called once for all buckets, after the last one of a step is
    /// mixed. No update then begins before the backward pass is over.
    bool rule_sees_whole_step = false;
    std::shared_ptr<const Schedule> schedule = {};
    GradientOptions gradients = {};
    /// Must outlive the pipeline. Null: the pipeline has a stream of its own, whose work is done at
    /// once.
    Stream* stream = nullptr;
    SimdPath simd = best_simd_path();
    /// Number of threads that share mixing and updates, the caller included.
    int num_threads = 1;
    /// Makes matrices orthogonal for optimizers that ask for it (BlockUpdate::orthogonalize).
    Orthogonalize orthogonalize = {};
    /// Where waits, updates and messages are recorded; null: nowhere. On a GPU, updates and the
    /// waits for NCCL are recorded as the host sees them: as long as it takes to give the work to
    /// the stream.
    std::shared_ptr<Timeline> timeline = {};
    /// True: the pipeline exchanges nothing before resume(). The constructor with buckets is not
    /// collective then.
    bool begins_detached = false;
    /// Bytes at which a bucket closes; equal on all ranks. 0: the first steps try several sizes,
    /// and training goes on with the one that had the shortest steps (bucket_tuner.hpp).
    std::int64_t bucket_bytes = std::int64_t{25} * 1024 * 1024;
    /// Steps between two means of the model's buffers, which the host makes; 0: none. Some
    /// algorithms refuse it.
    std::int64_t average_buffers_every = 0;
    /// Takes warnings and news.
    Logger logger = {};

    /// What an algorithm of `wanted` is to run with, as far as this configuration says.
    /// `num_ranks`: 0 where it is not known yet. `is_elastic`: Communicator::is_elastic().
    [[nodiscard]] AlgorithmSetting setting(const ExchangeOptions& wanted, int num_ranks,
                                           bool is_elastic) const;
  };

  /// `communicator` and `host` must outlive the pipeline. The first step traces and plans.
  Pipeline(Communicator& communicator, Config config, std::vector<ParameterInfo> parameters,
           ParameterHost& host);
  /// Collective. A pipeline whose caller has cut the buckets, and that has no host. `memory` holds
  /// the initial parameters of each bucket of the plan.
  Pipeline(Communicator& communicator, Config config, std::vector<ParameterInfo> parameters,
           const BucketPlan& plan, std::vector<ParameterMemory> memory);
  /// Waits for the stream's work; drops errors.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  [[nodiscard]] PipelineState state() const;
  /// Whether the parameters lie in buckets: start() was called, or buckets were given.
  [[nodiscard]] bool has_started() const { return step_.has_started; }
  [[nodiscard]] const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  /// The buckets; empty before make_plan().
  [[nodiscard]] const BucketPlan& plan() const { return planner_.plan(); }
  [[nodiscard]] bool has_plan() const { return planner_.has_plan(); }
  /// Declared indices, in the order in which gradients arrived in the first step: this rank's order
  /// before make_plan(), and the order of all ranks from then on.
  [[nodiscard]] const std::vector<std::int64_t>& arrival_order() const { return planner_.order(); }
  /// Throws ConfigError if an algorithm cannot run so with this configuration.
  void check(const ExchangeOptions& wanted) const;

  /// In the first step: a gradient has arrived. Each parameter once.
  void arrived(std::int64_t parameter);
  /// Collective. Takes one order of arrival for all ranks, and cuts buckets. A PeerLost does not
  /// leave this call where the communicator is elastic, nor start().
  void make_plan();
  /// Collective. Has the parameters moved into the buckets of plan(), and makes the algorithm.
  void start();
  /// Whether the parameter's gradient has arrived in this step.
  [[nodiscard]] bool is_offered(std::int64_t parameter) const {
    return places_[static_cast<std::size_t>(parameter)].is_offered;
  }
  /// What is_offered() says of each parameter.
  [[nodiscard]] std::vector<bool> offered() const;
  /// Forgets which gradients have arrived, without a step.
  void forget_offered();

  /// Tells that the gradient of a parameter has arrived. `parameter` is its declared index. The
  /// memory of `gradient` must stay until the parameter's update is done.
  void gradient_ready(std::int64_t parameter, ConstBlock gradient);
  /// Ends the step: updates all buckets that are left. May move the parameters into buckets of
  /// another size, while sizes are tried.
  void finish_step();
  /// Waits for all exchanges under way and for the stream. The next step still mixes in what has
  /// arrived. Does nothing before start().
  void drain();
  /// Makes the next step mix nothing. Call after drain().
  void forget_arrived();

  /// Shows the visitor all state of training, per parameter. Drains first. Loading is collective:
  /// it ends with repeating the exchanges that were under way when the state was saved. Saving is
  /// collective if the ranks share the optimizer's states (node_gossip with `shard: optimizer`):
  /// they gather the states of one bucket after the other, so each rank saves all of them. Ranks,
  /// algorithm, optimizer and parameters must be the same as at saving; bucket sizes may differ.
  void visit(StateVisitor& visitor);
  /// Shows the visitor what a checkpoint holds: the order of arrival, and the state of visit() in
  /// row-major order. `layouts` says where the elements of the parameters lie, by name. Loading
  /// before the first step makes the plan, and starts. Throws std::logic_error when saving before
  /// the first step.
  void visit_row_major(StateVisitor& visitor, std::map<std::string, MemoryLayout> layouts);

  /// Collective, between two steps, after start(). Goes on with buckets that close at
  /// `bucket_bytes`, and tries no sizes.
  void replan(std::int64_t bucket_bytes);
  /// The step under way does not count for the choice of a size.
  void skip_trial() { planner_.skip_trial(); }
  [[nodiscard]] bool tries_buckets() const { return planner_.tries_sizes(); }
  /// Collective, between two steps. Drains, and replaces the buckets by the buckets of `plan`,
  /// which holds the same parameters. `memory` is for their parameters, as in the constructor; its
  /// values are overwritten. Training continues as if it had been saved, and loaded into a pipeline
  /// with these buckets. Meanwhile host memory holds a copy of all state. Throws std::logic_error
  /// inside a step, and where ranks may be lost (Communicator::is_elastic()): the state belongs to
  /// no pipeline meanwhile. Throws what drain() and visit() throw. After an error the pipeline is
  /// unusable.
  void replan(const BucketPlan& plan, std::vector<ParameterMemory> memory);

  /// Collective, between two steps or before the first one: goes on with another algorithm or
  /// topology; see algorithm_switch.hpp for what stays. Codec and metrics stay as well, and buckets
  /// unless their sizes are tried, which begins again. Throws
  /// ConfigError on all ranks if they ask for different things or at different steps, or if the
  /// algorithm cannot run so; training may then go on as before. Throws std::logic_error inside a
  /// step, and what drain() throws. After a CommError the pipeline is unusable.
  void switch_to(const AlgorithmSwitch& to);

  /// Between two steps or before the first one, where ranks are lost: drops all exchanges, and what
  /// belongs to the world of the communicator. Until resume() steps exchange nothing, and drain()
  /// throws PeerLost.
  void detach();
  /// After detach() and Elastic::reconfigure(), before each step that this rank lacks: the others
  /// have made `num_steps` steps.
  void catch_up(std::int64_t num_steps);
  /// Whether state() is PipelineState::kUncommitted.
  [[nodiscard]] bool has_uncommitted_step() const { return uncommitted_.is_pending(); }
  /// Steps exchange nothing: ranks are lost, or detach() was called.
  [[nodiscard]] bool is_detached() const { return detached_ != nullptr; }
  /// Throws PeerLost if has_uncommitted_step().
  void check_committed() const;
  /// How a rank goes on in a new world.
  struct Resume {
    /// Names the same on all ranks, whichever they had before. `average`: all go on from the mean
    /// of their parameters and optimizers' states. Where one joins, they always do.
    AlgorithmSwitch to = {};
    /// This rank joins: it takes over the others' steps, and its own parameters and states count
    /// nothing.
    bool joins = false;
  };
  /// Collective of the ranks that are left, after detach(), Elastic::reconfigure(), and the steps
  /// that this rank lacked; and of ranks that join, whose pipelines begin detached. The algorithm
  /// starts anew on the topology, as after switch_to(). A rank that joins takes the order of
  /// arrival from the others. After a PeerLost detach(), reconfigure() and resume() follow again.
  /// Throws ConfigError, on all ranks, if the algorithm cannot run on the topology, or if orders of
  /// arrival differ.
  void resume(const Resume& wanted);

  /// Tells what the updates of a parameter use from the next one on, in place of the schedule and
  /// of ParameterInfo::weight_decay, and keeps it when buckets change. `parameter` is its declared
  /// index. Where ranks share the optimizer's states (node_gossip with `shard: optimizer`), all
  /// tell the same. Throws std::logic_error for an optimizer of another kind than the parameter's.
  void set_settings(std::int64_t parameter, ParameterSettings settings);
  /// Goes on as if a parameter had been updated so many times. The owner of the optimizer's states
  /// calls this between two steps. `parameter` is its declared index.
  void set_num_updates(std::int64_t parameter, std::int64_t num_updates);

  /// Sets the factor that gradients are multiplied by before clipping and update; see
  /// GradientPolicy.
  void set_gradient_scale(double scale) { policy_.set_scale(scale); }
  /// Between two steps: clips from the next step on; see GradientPolicy. Throws ConfigError.
  void set_clipping(ClipMode mode, double norm) { policy_.set_clipping(mode, norm); }
  /// The L2 norm of the last step's gradients before clipping: this rank's own, or the mean under
  /// all-reduce. Waits like metrics(). 0 before the first step.
  [[nodiscard]] double gradient_norm();

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Where the policy is NonFinite::kKeep: says which gradient was the first that was not finite
  /// since the last call; empty: none. Waits like metrics().
  [[nodiscard]] std::string take_nonfinite();
  /// Waits until it is known how the last step ended. Throws NonFiniteError and CommError.
  [[nodiscard]] const PipelineMetrics& metrics();
  /// Waits like metrics().
  [[nodiscard]] const Progress& progress();
  /// The learning rate of the next step. Waits like metrics().
  [[nodiscard]] double lr();
  /// The learning rate of the last step; before start(), of the first one. Never waits.
  [[nodiscard]] double last_lr() const;
  [[nodiscard]] Stream& stream() { return stream_; }
  /// This rank's weight in the mean of all ranks' models; 1 except in directed topologies and where
  /// ranks are asynchronous. Call it between two steps; where ranks are asynchronous, after
  /// drain().
  [[nodiscard]] double model_weight() const;
  /// How the ranks of a host read each other's blocks.
  [[nodiscard]] HostSharing host_sharing() const;
  /// The memory of all parameters, bucket by bucket.
  [[nodiscard]] std::vector<ParameterMemory> memory() const;

 private:
  /// Makes all that needs no buckets.
  Pipeline(Communicator& communicator, Config config, std::vector<ParameterInfo> parameters,
           ParameterHost* host);

  /// What is known of a parameter, by declared index.
  struct Place {
    std::size_t bucket = 0;
    std::int64_t entry = 0;
    /// The gradient has arrived in this step.
    bool is_offered = false;
    /// What set_settings() has told.
    std::optional<ParameterSettings> settings = {};
  };

  /// What is known of the present step and of the last one.
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
    /// What the last step has ended with.
    std::exception_ptr failure = nullptr;
    /// The first gradient that was not finite since take_nonfinite().
    std::string nonfinite = {};
  };

  /// Tells the logger once that the system keeps ranks of a host from sharing memory.
  void tell_of_messages();
  /// Warns of options of the algorithm that are likely to ruin the run.
  void warn_of_algorithm() const;
  /// Waits until no exchange is under way, and takes what others have written to the parameters.
  void drain_parameters();
  /// Collective. Goes on with buckets that close at `bucket_bytes`. Does nothing if they are the
  /// present ones.
  void recut(std::int64_t bucket_bytes);
  /// Collective. A rank that joins takes the order of arrival from the others, and starts. Throws
  /// ConfigError on all ranks if orders differ.
  void agree_on_order();
  /// Collective: resume() before the first step.
  void resume_tracing(const Resume& wanted);
  /// Collective: resume() of a pipeline that has started.
  void resume_training(const Resume& wanted);
  /// Collective: goes on with other options of exchange, after start() and drain_parameters().
  void change_algorithm(bool averages, ExchangeOptions next);
  /// Collective. Takes an order of arrival, cuts buckets, and starts.
  void start_in(std::vector<std::int64_t> order);
  /// Runs a part of a step with the algorithm, or after a PeerLost with one that exchanges nothing.
  template <class Part>
  void run_or_detach(const Part& part);
  /// From now on steps exchange nothing.
  void stop_exchanging();
  /// Whether ranks update only when all of them have the sums of the step.
  [[nodiscard]] bool commits() const;
  /// Collective: all gradients of the step are there. Returns false if the step stays
  /// uncommitted.
  [[nodiscard]] bool commit();
  /// Makes the updates of the uncommitted step with the sums that all ranks had, or alone.
  void commit_now();
  /// Takes back what has replaced this rank's own gradients.
  void restore_gradients();
  /// Collective: ends the uncommitted step where another rank has ended it. Returns the number of
  /// ranks whose gradients the step needs that is to be made again; 0: none is.
  std::int64_t end_uncommitted_step(bool joins);
  /// Collective: makes the uncommitted step again, from the gradients of `num_ranks` ranks.
  void remake_step(std::int64_t num_ranks);
  /// The factor that turns the gradients of this step into means.
  [[nodiscard]] double mean_factor() const;
  /// The algorithm of the present step.
  [[nodiscard]] Algorithm& algorithm() const { return detached_ ? *detached_ : *algorithm_; }
  /// Makes what lanes need of the communicator's world.
  void make_lanes();
  /// Collective, unless the pipeline begins detached: makes what trains the buckets of plan().
  void build(bool begins_detached, std::vector<ParameterMemory> memory);
  /// Makes the buckets of plan(), and the algorithm's part for them.
  void make_buckets(std::vector<ParameterMemory> memory);
  void make_algorithm();
  void drop_algorithm();
  /// Throws std::logic_error if a gradient of the next step has arrived.
  void check_between_steps(std::string_view call) const;
  /// Throws CheckpointError for numbers of steps that cannot be.
  void check_progress() const;
  /// Collective: repeats the exchanges of the last step, with the number of that step. A rank that
  /// has forgotten them takes part as well, because another rank may not have forgotten.
  void repeat_exchanges();
  /// Makes all ranks equal: parameters and the optimizer's states become their means, and counts
  /// the largest one. `weight`: this rank's weight in the mean of the parameters, `state_weight` in
  /// that of states and numbers.
  void average_ranks(double weight, double state_weight = 1.0);
  /// Shows the visitor the numbers that decide on updates.
  void visit_numbers(StateVisitor& visitor);
  [[nodiscard]] bool defers() const {
    return commits() || config_.rule_sees_whole_step || algorithm().updates_at_end() ||
           policy_.defers();
  }
  /// Handles buckets in order, as long as the next one is ready.
  void advance();
  /// Lets the algorithm replace the gradients of a bucket, then inspects the new gradients.
  void finish_gradients(Bucket& bucket);
  /// Decides about the gradients, mixes, updates, and starts the next exchange.
  void update(Bucket& bucket);
  /// Updates as update() does, all buckets of a step.
  void update_all();
  /// Decides about the gradients, mixes, and updates unless the rule is the caller's own.
  void mix_and_update(Bucket& bucket);
  /// Calls the caller's own rule for buckets that are mixed.
  void apply_external_optimizer(std::span<Bucket> buckets);
  /// Starts the next exchange of a bucket.
  void send(Bucket& bucket);
  /// Updates the buckets of a step in which updates wait for the end of the backward pass.
  void update_deferred();
  /// Whether deferred updates need no decision about the whole step.
  [[nodiscard]] bool updates_in_turn() const;
  /// Whether ranks that share states add up the norms of gradients.
  [[nodiscard]] bool completes_norms() const;
  /// Decides whether the step is skipped: with all ranks, unless ranks count steps for themselves
  /// or are lost.
  void decide_step();
  /// Makes the updates that are left, and ends the step unless it stays uncommitted.
  void end_step();
  /// All updates are made.
  void count_step();
  /// Computes the squared norm of a gradient, if the stream's work is done at once. Returns false
  /// if the gradient is not finite and the policy is not to skip. On other streams returns true and
  /// does nothing.
  [[nodiscard]] bool inspect(Bucket& bucket, std::int64_t entry, const ConstBlock& gradient);
  /// Learns how the last step ended, once per step: counts a skipped step, throws NonFiniteError
  /// where the policy is to abort, then and ever after.
  void close_step();
  /// Throws NonFiniteError, or notes it where the owner of the gradients decides.
  void refuse(const Bucket& bucket, std::int64_t entry, std::int64_t step, bool is_own);

  Config config_;
  std::vector<ParameterInfo> parameters_;
  /// Null where the caller has given the buckets.
  ParameterHost* host_;
  Communicator& communicator_;
  InlineStream inline_stream_;
  Stream& stream_;
  PipelineMetrics metrics_;
  Progress progress_;
  WorkerPool pool_;
  GradientPolicy policy_;
  BucketPlanner planner_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
  std::unique_ptr<PeerLanes> lanes_;
  std::unique_ptr<Algorithm> algorithm_;
  /// Takes the algorithm's place where ranks are lost.
  std::unique_ptr<Algorithm> detached_;
  UncommittedStep uncommitted_;
  StepStatus step_;
  /// What the communicator needs for sums of the pipeline itself.
  std::shared_ptr<void> reserved_;
  /// The last member, so that the stream's work is done before any other member is destroyed.
  SynchronizedScope scope_;
};

}  // namespace gossamer
