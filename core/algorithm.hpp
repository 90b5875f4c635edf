#pragma once
// An algorithm decides what the ranks send to one another, and what an update of a bucket mixes in.
// The pipeline owns everything that is the same for all algorithms: it counts gradients, clips
// them, keeps the order of calls the same on all ranks, knows the learning rate, and runs the
// sweep.
//
// The pipeline calls, for every step and in this order:
//
//   for each bucket, as soon as all its gradients and all buckets before it are there:
//     gradients_ready(bucket)     the gradients of this rank are there; after the last bucket's
//                                 comes gradients_complete()
//     final_gradients(bucket)     last chance to put others in their place
//     before_update(bucket)       what to mix in; then the pipeline runs the sweep
//     after_update(bucket)        the parameters are those of the next step
//   end_step()
//
// Buckets come in bucket order, the same on every rank. Where updates wait for the end of the
// backward pass (updates_at_end(), or clipping by the global norm), the pipeline first calls
// gradients_ready() for the buckets as they come, then the other three. With clipping by the global
// norm it calls final_gradients() for all buckets before it calls before_update() for the first.
//
// State: an algorithm asks a bucket for named blocks (Bucket::add_state()), which the pipeline
// saves and loads by parameter. Messages under way are not saved: after loading, the pipeline calls
// after_update() again for every bucket, as the last step did. What after_update() sends must
// therefore be parameters, or blocks of add_state() or of visit().
//
// A new algorithm is one file in core/algorithms and one row in its registry.cpp; docs/design.md
// shows one step by step. Not thread safe.

#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.hpp"
#include "base/registry.hpp"
#include "base/worker_pool.hpp"
#include "core/bucket.hpp"
#include "core/intake.hpp"
#include "core/lane.hpp"
#include "core/pipeline_metrics.hpp"
#include "core/state_visitor.hpp"
#include "optim/schedule.hpp"
#include "topology/topology.hpp"

namespace gossamer {

/// What an algorithm works with. The pipeline owns it, and it outlives the algorithm.
struct AlgorithmSetup {
  /// Buckets hold the initial parameters.
  std::span<Bucket> buckets;
  LaneFactory& lanes;
  /// Steps that are over.
  const Progress& progress;
  const Schedule& schedule;
  /// All work on blocks goes here.
  Stream& stream;
  SimdPath simd = best_simd_path();
  /// Shares the work of large blocks; null: the caller does it alone.
  WorkerPool* pool = nullptr;
};

class Algorithm {
 public:
  virtual ~Algorithm() = default;

  /// Updates need the whole backward pass of all ranks.
  [[nodiscard]] virtual bool updates_at_end() const { return false; }
  /// Turns the gradients that are used into means; 1/n where they are sums over n ranks.
  [[nodiscard]] virtual double mean_factor() const { return 1.0; }

  /// May start lanes that send the bucket's gradients.
  virtual void gradients_ready(Bucket& /*bucket*/) {}
  /// gradients_ready() has been called for all buckets.
  virtual void gradients_complete() {}
  /// Waits for whatever takes the place of this rank's gradients, and puts it into the bucket
  /// (Bucket::replace_gradient()). The pipeline inspects and clips what is then there.
  virtual void final_gradients(Bucket& /*bucket*/) {}
  /// Waits for lanes, and returns what has arrived.
  virtual Intake before_update(Bucket& /*bucket*/) { return {}; }
  /// Starts lanes that send the bucket's new parameters.
  virtual void after_update(Bucket& /*bucket*/) {}
  virtual void end_step() {}

  /// The stream waits for all lanes; what has arrived is still mixed in by the next step.
  virtual void drain() {}
  /// After drain(): what has arrived is not mixed in, because somebody else has written the
  /// parameters.
  virtual void forget() {}
  /// Names the numbers and blocks that the algorithm has beside Bucket::add_state(). Called after
  /// drain().
  virtual void visit(StateVisitor& /*visitor*/) {}

  /// After a step with a gradient that was not finite, on a stream that lags behind: whether it was
  /// this rank's own. Algorithms that use sums over ranks look at what this rank has added.
  [[nodiscard]] virtual bool is_own_gradient(const Bucket& /*bucket*/, std::int64_t /*entry*/) {
    return true;
  }
};

/// Makes the algorithm of one rank. Collective: it may make lanes.
using AlgorithmFactory = std::function<std::unique_ptr<Algorithm>(const AlgorithmSetup& setup)>;

/// One row of the table of algorithms (core/algorithms/registry.cpp).
struct AlgorithmEntry {
  std::string_view name;
  std::string_view summary;
  /// The keys that `read` reads beside `name`.
  std::span<const OptionEntry> options = {};
  /// Ranks send each other something.
  bool communicates = true;
  /// Lanes follow a topology, which must be given.
  bool needs_topology = false;
  /// Only topologies with a single round.
  bool needs_static = false;
  /// Only topologies whose messages go in both directions.
  bool needs_undirected = false;
  /// All ranks hold the same parameters after every step.
  bool keeps_models_equal = false;
  /// Reads the options, and makes nothing yet. Throws ConfigError with the place in the file.
  AlgorithmFactory (*read)(const Options& options) = nullptr;
};

std::span<const AlgorithmEntry> algorithm_table();
std::vector<std::string> algorithm_names();

/// Why an algorithm cannot run on a topology (null: there is none), with advice; empty: it can.
std::string why_not(const AlgorithmEntry& entry, const Topology* topology);

/// An algorithm with its options: `gossip`, or {"allreduce", Options::parse("delay: 1")}.
class AlgorithmChoice {
 public:
  AlgorithmChoice() : AlgorithmChoice(std::string_view("gossip")) {}
  /// Throws ConfigError for an unknown name or a wrong option.
  explicit AlgorithmChoice(std::string_view name, const Options& options = Options());
  // NOLINTNEXTLINE(google-explicit-constructor): `.algorithm = "allreduce"` is meant to work
  template <std::convertible_to<std::string_view> Name>
  AlgorithmChoice(const Name& name) : AlgorithmChoice(std::string_view(name)) {}
  template <std::convertible_to<std::string_view> Name>
  AlgorithmChoice(const Name& name, const Options& options)
      : AlgorithmChoice(std::string_view(name), options) {}

  [[nodiscard]] const AlgorithmEntry& entry() const { return *entry_; }
  [[nodiscard]] std::string name() const { return std::string(entry_->name); }
  [[nodiscard]] std::unique_ptr<Algorithm> make(const AlgorithmSetup& setup) const {
    return factory_(setup);
  }

 private:
  const AlgorithmEntry* entry_;
  AlgorithmFactory factory_;
};

/// Reads `algorithm: NAME` or `algorithm: {name: NAME, ...}` of a configuration.
AlgorithmChoice read_algorithm(const Options& root, std::string_view fallback = "gossip");

}  // namespace gossamer
