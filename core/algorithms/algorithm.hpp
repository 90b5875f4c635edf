#pragma once
// An algorithm decides what the ranks send to one another and what an update of a bucket mixes in.
// The pipeline does everything that is the same for all algorithms. It counts and clips gradients,
// keeps the order of calls the same on all ranks, knows the learning rate, and runs the sweep.
//
// In every step the pipeline calls, in this order:
//
//   for each bucket, when all gradients of this bucket and of all buckets before it have arrived:
//     gradients_ready(bucket)     this rank's gradients have arrived
//     final_gradients(bucket)     the last chance to replace the gradients
//     before_update(bucket)       returns what to mix in; then the pipeline runs the sweep
//     after_update(bucket)        the bucket holds the parameters of the next step
//   end_step()
//
// An algorithm with mixes_at_end() gets before_update() for all buckets after end_step() instead.
//
// Buckets come in bucket order, the same on every rank. On a stream that lags behind, neighbouring
// small buckets are a group (core/bucket/update_groups.hpp). The pipeline then makes each of the
// last three calls for all buckets of the group before it makes the next call. Two conditions defer
// updates to the end of the backward pass: updates_at_end(), and GradientPolicy::defers() (as with
// clipping by the global norm). The pipeline then calls gradients_ready() for the buckets as they
// come, and the other three calls later. If GradientPolicy::defers(), or if norms are to be
// completed, it calls final_gradients() for all buckets before it calls before_update() for the
// first bucket.
//
// State: Bucket::add_state() gives an algorithm named blocks, which the pipeline saves and loads by
// parameter. Messages under way are not saved. Instead, after loading, the pipeline repeats the
// sends of the last step: it calls after_update() for every bucket, then end_step(). These calls
// must therefore send only parameters, or blocks of add_state() or visit(). The pipeline drains,
// forgets, saves and loads the lanes, so an algorithm only says what it keeps beside them.
//
// A new algorithm is one file in core/algorithms and one row in its registry.cpp;
// docs/guide/extending.md shows one step by step.
//
// Errors: CommError from lanes. Not thread safe.

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/options.hpp"
#include "base/registry.hpp"
#include "base/state_visitor.hpp"
#include "base/worker_pool.hpp"
#include "core/algorithms/pipeline_metrics.hpp"
#include "core/bucket/bucket.hpp"
#include "core/exchange/lane.hpp"
#include "optim/intake.hpp"
#include "optim/optimizer.hpp"
#include "optim/schedule.hpp"
#include "topology/topology.hpp"

namespace gossamer {

/// The surroundings of an algorithm. The pipeline owns all members and outlives the algorithm.
struct AlgorithmSetup {
  /// Buckets hold the initial parameters.
  std::span<Bucket> buckets;
  LaneFactory& lanes;
  /// Counts the steps that are over; changes as training goes on.
  const Progress& progress;
  const Schedule& schedule;
  /// All work on blocks goes to this stream.
  Stream& stream;
  /// The codec that encodes the blocks of lanes of LaneResult::kMix and kSum; null: the lanes send
  /// plain blocks.
  const Codec* codec = nullptr;
  SimdPath simd = best_simd_path();
  /// Threads that share the work on large blocks. Null: one thread does it.
  WorkerPool* pool = nullptr;
};

/// The common work of ranks that each have the optimizer's states and the gradients of one shard
/// (Bucket::keep_shard()). All calls are collective.
class SharedStates {
 public:
  virtual ~SharedStates() = default;
  /// Called where clipping needs norms. Bucket::squares() hold the squared norms of the parts that
  /// this rank has, for all buckets. Turns the norms into norms of the whole gradients.
  virtual void complete_norms() = 0;
  /// Gives the bucket the states of all elements, before it is saved, loaded, or left to another
  /// algorithm. Called after the lanes are drained.
  virtual void gather(Bucket& bucket) = 0;
  /// Called after gather(), if the algorithm goes on: the bucket keeps only its shard again.
  virtual void release(Bucket& bucket) = 0;
};

class Algorithm {
 public:
  virtual ~Algorithm() = default;

  /// True: updates wait for the end of the backward pass, because they need gradients of all ranks.
  [[nodiscard]] virtual bool updates_at_end() const { return false; }
  /// True: a step ends with mixed parameters, so no exchange is under way between two steps.
  [[nodiscard]] virtual bool mixes_at_end() const { return false; }
  /// The factor that turns the used gradients into means: 1/n where they are sums over n ranks.
  [[nodiscard]] virtual double mean_factor() const { return 1.0; }

  /// All gradients of this rank for the bucket have arrived. May start lanes that send them.
  virtual void gradients_ready(Bucket& /*bucket*/) {}
  /// Waits for the gradients that replace this rank's own, and puts them into the bucket
  /// (Bucket::replace_gradient()). The pipeline then inspects and clips the bucket's gradients.
  virtual void final_gradients(Bucket& /*bucket*/) {}
  /// Waits for lanes, and returns what to mix in.
  virtual Intake before_update(Bucket& /*bucket*/) { return {}; }
  /// Starts lanes that send the bucket's new parameters.
  virtual void after_update(Bucket& /*bucket*/) {}
  virtual void end_step() {}

  /// Drops the values that the algorithm keeps of arrived blocks, because other code has written
  /// the parameters. The lanes drop their blocks themselves.
  virtual void forget() {}
  /// Shows the visitor the numbers and blocks of the algorithm that do not come from
  /// Bucket::add_state() or lanes. Called after the lanes are drained.
  virtual void visit(StateVisitor& /*visitor*/) {}
  /// The object of algorithms whose ranks share the optimizer's states; null: every rank has all
  /// states.
  [[nodiscard]] virtual SharedStates* shared_states() { return nullptr; }
};

/// The setting in which an algorithm is to run, as far as it is known.
struct AlgorithmSetting {
  /// Null: none.
  const Topology* topology = nullptr;
  const Codec* codec = nullptr;
  /// Null: not known yet.
  const Optimizer* optimizer = nullptr;
  /// The optimizers of groups of parameters.
  std::vector<std::shared_ptr<const Optimizer>> group_optimizers = {};
  /// The caller's own rule takes the optimizer's place (optim/external_optimizer.hpp).
  bool has_external_optimizer = false;
  /// Null: work is done at once, on processors.
  const Stream* stream = nullptr;
  /// The models are on GPUs.
  bool on_gpu = false;
  /// 0: not known yet.
  int num_ranks = 0;
  /// Ranks may be lost while the others go on (Communicator::is_elastic()).
  bool is_elastic = false;
  /// The first steps try several sizes of buckets.
  bool tries_bucket_sizes = false;
  /// Steps between two means of the model's buffers; 0: none.
  std::int64_t average_buffers_every = 0;
};

/// The topologies that an algorithm's lanes can follow.
enum class TopologyKind {
  /// The lanes follow none.
  kNone,
  kAny,
  /// Messages go in both directions.
  kUndirected,
  /// Undirected, with a single round of one level.
  kStatic,
  /// Undirected, with a single round whose graph is a tree.
  kTree,
  /// Two levels, with the same nodes in every round.
  kNodes,
};

/// An algorithm with its options. Converts from a function that makes the algorithm.
class AlgorithmFactory {
 public:
  /// Makes the algorithm of one rank. Collective, because it may make lanes.
  using Make = std::function<std::unique_ptr<Algorithm>(const AlgorithmSetup& setup)>;
  /// Says why the algorithm cannot run so with its options, with advice; empty if it can. Called
  /// with what suits the algorithm's row.
  using WhyNot = std::function<std::string(const AlgorithmSetting& setting)>;

  /// `topologies`: what stands in place of the topologies of the algorithm's row, where options
  /// decide. `period`: the number of steps, at least 1, after which what the ranks send repeats,
  /// once a warm-up is over. Example: `outer` with `every: 8` sends in one of 8 steps.
  /// `takes_recipe`: a measured rule says what a recipe for all-reduce becomes under the algorithm
  /// (core/step/recipe.hpp).
  template <std::invocable<const AlgorithmSetup&> Function>
  // NOLINTNEXTLINE(google-explicit-constructor): `return [](const AlgorithmSetup&) {...}` works
  AlgorithmFactory(Function make, WhyNot why_not = nullptr,
                   std::optional<TopologyKind> topologies = std::nullopt, std::int64_t period = 1,
                   bool takes_recipe = false)
      : make_(std::move(make)),
        why_not_(std::move(why_not)),
        topologies_(topologies),
        period_(period),
        takes_recipe_(takes_recipe) {}

  [[nodiscard]] std::string why_not(const AlgorithmSetting& setting) const {
    return why_not_ ? why_not_(setting) : "";
  }
  [[nodiscard]] std::unique_ptr<Algorithm> make(const AlgorithmSetup& setup) const {
    return make_(setup);
  }
  [[nodiscard]] std::optional<TopologyKind> topologies() const { return topologies_; }
  [[nodiscard]] std::int64_t period() const { return period_; }
  [[nodiscard]] bool takes_recipe() const { return takes_recipe_; }

 private:
  Make make_;
  WhyNot why_not_;
  std::optional<TopologyKind> topologies_;
  std::int64_t period_;
  bool takes_recipe_;
};

/// When all ranks hold the same parameters.
enum class EqualModels { kNever, kAtStart, kAfterEveryStep };

/// How the steps of the ranks belong together.
enum class RankSteps {
  /// The ranks send one another nothing.
  kAlone,
  /// The k-th steps of all ranks are one step.
  kTogether,
  /// The ranks may make different numbers of steps between two collective calls. What all ranks do
  /// together in every step is not possible.
  kAsynchronous,
};

/// One row of the table of algorithms (core/algorithms/registry.cpp).
struct AlgorithmEntry {
  std::string_view name;
  std::string_view summary;
  /// The keys that `read` reads beside `name`.
  std::span<const OptionEntry> options = {};
  /// The topologies that the algorithm takes with its default options;
  /// AlgorithmChoice::topologies() gives the topologies that a choice takes.
  TopologyKind topologies = TopologyKind::kNone;
  EqualModels equal_models = EqualModels::kNever;
  RankSteps steps = RankSteps::kTogether;
  /// True: models are averaged every few steps, which an optimizer with follows_mixing() cannot
  /// use.
  bool averages_rarely = false;
  /// True: the ranks may send encoded blocks (optim/codec.hpp). AlgorithmChoice::takes() knows
  /// which ones.
  bool takes_codec = false;
  /// True: in sums over all ranks, a rank keeps what its encoded blocks lack, and sends it later.
  /// So codecs may leave out elements (Codec::is_sparse()).
  bool feeds_errors_back = false;
  /// Why blocks must be in the memory of processors; empty: they may be on GPUs. Ends a sentence
  /// after "because".
  std::string_view processors_only = {};
  /// True: a step may lose its exchanges, and the ranks that are left start the algorithm anew
  /// (Pipeline::resume()).
  bool survives = false;
  /// Reads the options. The returned factory makes the algorithm later. Throws ConfigError with the
  /// place in the file.
  AlgorithmFactory (*read)(const Options& options) = nullptr;

  /// All ranks must begin with the same parameters.
  [[nodiscard]] bool needs_equal_models() const { return equal_models != EqualModels::kNever; }
  [[nodiscard]] bool asynchronous() const { return steps == RankSteps::kAsynchronous; }
};

std::span<const AlgorithmEntry> algorithm_table();
/// `own` are a user's rows, whose names stand behind the names of the table.
std::vector<std::string> algorithm_names(std::span<const AlgorithmEntry> own = {});

inline constexpr ChoiceOption kAlgorithmName{
    "name", "what the ranks send", {.fallback = "gossip", .names = [] {
                                      return algorithm_names();
                                    }}};

/// An algorithm with its options: `gossip`, or {"allreduce", Options::parse("delay: 1")}.
class AlgorithmChoice {
 public:
  AlgorithmChoice() : AlgorithmChoice(std::string_view("gossip")) {}
  /// Throws ConfigError for an unknown name or a wrong option.
  explicit AlgorithmChoice(std::string_view name, const Options& options = Options(),
                           std::span<const AlgorithmEntry> own = {});
  /// An algorithm that is in no table: your own. `entry` must outlive the choice. Throws
  /// ConfigError for a wrong option.
  explicit AlgorithmChoice(const AlgorithmEntry& entry, const Options& options = Options());
  // NOLINTNEXTLINE(google-explicit-constructor): `.algorithm = "allreduce"` is meant to work
  template <std::convertible_to<std::string_view> Name>
  AlgorithmChoice(const Name& name) : AlgorithmChoice(std::string_view(name)) {}
  template <std::convertible_to<std::string_view> Name>
  AlgorithmChoice(const Name& name, const Options& options,
                  std::span<const AlgorithmEntry> own = {})
      : AlgorithmChoice(std::string_view(name), options, own) {}

  [[nodiscard]] const AlgorithmEntry& entry() const { return *entry_; }
  [[nodiscard]] std::string name() const { return std::string(entry_->name); }
  [[nodiscard]] TopologyKind topologies() const {
    return factory_.topologies().value_or(entry_->topologies);
  }
  /// The configuration must name a topology.
  [[nodiscard]] bool needs_topology() const { return topologies() != TopologyKind::kNone; }
  /// The number of steps after which what the ranks send repeats, once a warm-up is over.
  [[nodiscard]] std::int64_t period() const { return factory_.period(); }
  /// Whether a measured rule says what a recipe for all-reduce becomes.
  [[nodiscard]] bool takes_recipe() const { return factory_.takes_recipe(); }
  /// Whether the ranks may send blocks that the codec has encoded.
  [[nodiscard]] bool takes(const Codec& codec) const;
  /// The name and all options, as `outer {every: 8, kind: slowmo}`.
  [[nodiscard]] const std::string& text() const { return text_; }
  /// The options that were given, as `every: 8`; empty: none.
  [[nodiscard]] const std::string& given() const { return given_; }
  /// Says why the algorithm with its options cannot run so, with advice; empty if it can. This is
  /// the one place that knows what goes with what. Callers of make() ask first, so that nothing
  /// is refused half way.
  [[nodiscard]] std::string why_not(const AlgorithmSetting& setting) const;
  /// Throws ConfigError with the reason of why_not(), if there is one.
  void check(const AlgorithmSetting& setting) const;
  /// Collective.
  [[nodiscard]] std::unique_ptr<Algorithm> make(const AlgorithmSetup& setup) const {
    return factory_.make(setup);
  }

 private:
  const AlgorithmEntry* entry_;
  AlgorithmFactory factory_;
  std::string text_;
  std::string given_;
};

/// The options that decide the messages of the ranks. The program, the wrapper and the pipeline
/// hand them on unchanged.
struct ExchangeOptions {
  /// A name, as "allreduce", or a name with options: {"allreduce", Options::parse("delay: 1")}.
  AlgorithmChoice algorithm = {};
  /// Must be given for algorithms that send to the peers of a topology, such as gossip.
  std::shared_ptr<const Topology> topology = {};
  /// The codec that encodes the parameters or gradients that ranks send (find_codec()); null: plain
  /// blocks.
  const Codec* codec = nullptr;
  /// Ranks of one host read each other's memory (host_slots.hpp); false: they send messages. Equal
  /// on all ranks.
  bool shares_memory = true;

  /// The setting in which the algorithm is to run, as far as these options say.
  [[nodiscard]] AlgorithmSetting setting() const {
    return {.topology = topology.get(), .codec = codec};
  }
};

/// Reads `algorithm: NAME` or `algorithm: {name: NAME, ...}` of a configuration. Refuses what only
/// training follows: phases and consensus control.
AlgorithmChoice read_algorithm(const Options& root, std::span<const AlgorithmEntry> own = {});

}  // namespace gossamer
