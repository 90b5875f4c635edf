#pragma once
// The engine of one model, as Python's wrapper uses it: a Pipeline whose parameters were
// tensors of Python and lie in the engine's blocks from the first step on. Python makes tensors of
// them again, which share the block's memory (DLPack).
//
// Protocol: calls follow the order of Pipeline's protocol. Python calls arrived() or
// gradient_ready() from its hooks and finish_step() at the end of a backward pass. When
// generation() has changed, the parameters lie somewhere else: Python fetches them with
// parameter().
//
// Thread safety: one thread at a time uses an engine. Calls that may wait hold no lock of Python's.
// A rule of Python's runs on the thread that calls the engine.

#include "python/src/checkpoints.hpp"
#include "python/src/device.hpp"
#include "python/src/session.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "core/bucket/model_average.hpp"
#include "core/checkpoint/tensor_source.hpp"
#include "core/step/pipeline.hpp"
#include "core/trace/step_timeline.hpp"
#include "optim/schedule.hpp"
#include "topology/edge_weights.hpp"

namespace gossamer::python {

/// A tensor that others may use without a copy.
using View = nanobind::ndarray<nanobind::array_api>;

/// Name, shape, strides in elements, type, and the address of the values.
using GivenParameter = std::tuple<std::string, std::vector<std::int64_t>, std::vector<std::int64_t>,
                                  std::string, std::uintptr_t>;

/// A piece of state that Python keeps: name, type and shape as safetensors files have them, and the
/// address of the values in row-major order.
using GivenTensor = std::tuple<std::string, std::string, std::vector<std::int64_t>, std::uintptr_t>;

/// A copy of a piece of state: name, type, shape, values.
using StateTensor =
    std::tuple<std::string, std::string, std::vector<std::int64_t>, nanobind::bytearray>;

/// A tensor that the engine does not train, in row-major order: its name, type, address, and size
/// in bytes. Types that the engine does not know are saved as bytes.
using OtherTensor = std::tuple<std::string, std::string, std::uintptr_t, std::int64_t>;

/// The sessions of a node and of all nodes.
using IslandSessions = std::pair<std::shared_ptr<PySession>, std::shared_ptr<PySession>>;

class Engine : private ParameterHost {
 public:
  /// Collective. `gpu`: where the parameters are; nothing: on the processor. `options`: YAML.
  /// `optimizer`: YAML, or a function (a rule) that takes the place of the engine's optimizer. The
  /// arguments of the function are:
  /// 1. the indices of the buckets whose parameters are mixed,
  /// 2. the factor for the learning rates,
  /// 3. the factor for the gradients of each bucket,
  /// 4. pairs (parameter, gradient) for the gradients that are not the rank's own.
  /// The engine calls the rule for one bucket after the other, or for all buckets of a step at once
  /// if the options have rule_sees_whole_step.
  ///
  /// `islands`: None, or the sessions of the ranks that have the other shards of this rank's
  /// parameters, and of all ranks (Pipeline::Config::shards, everyone).
  Engine(std::shared_ptr<PySession> session, const std::vector<GivenParameter>& parameters,
         const std::optional<Gpu>& gpu, const std::string& options,
         const nanobind::object& optimizer, std::optional<IslandSessions> islands);
  ~Engine() override;

  /// On a GPU: sends the work of the next calls to this cudaStream_t, PyTorch's current stream.
  void set_stream(std::uintptr_t stream);
  void arrived(std::int64_t parameter) { model().arrived(parameter); }
  /// Returns the number of buckets that have been updated in this step.
  std::int64_t gradient_ready(std::int64_t parameter, std::uintptr_t address);
  /// Collective. In the first step, cuts buckets and moves the parameters.
  void start();
  void finish_step();
  [[nodiscard]] bool has_started() const { return model().has_started(); }
  [[nodiscard]] std::int64_t generation() const { return generation_; }
  /// The indices of each bucket's parameters.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> buckets() const;
  [[nodiscard]] View parameter(std::int64_t index) const;
  /// The block that a rule updates: the float32 master copy of a bfloat16 parameter, else the
  /// parameter.
  [[nodiscard]] View master(std::int64_t index) const;

  void tell_lr(double lr) { schedule_->tell(lr); }
  /// Tells what the updates of these parameters use from now on. `optimizer`: YAML; empty: as it
  /// was.
  void tell(const std::vector<std::int64_t>& parameters, double lr, double weight_decay,
            const std::string& optimizer);
  /// With the option keeps_nonfinite: names the first gradient since the last call that was not
  /// finite; empty: all were finite.
  [[nodiscard]] std::string take_nonfinite();
  void set_gradient_scale(double scale) { model().set_gradient_scale(scale); }
  /// Between two steps: clips by the norm of all gradients from the next step on. Throws
  /// ConfigError for a norm that is not positive.
  void set_clip_norm(double norm) { model().set_clipping(ClipMode::kGlobal, norm); }
  /// The L2 norm of the last step's gradients before clipping; 0 before the first step. Waits until
  /// it is known.
  [[nodiscard]] double gradient_norm() const;
  [[nodiscard]] double recipe_factor() const;
  /// Edges of exchanges that start from now on have the weight 1 - factor (1 - w). Only with the
  /// option adaptive_factor, and with the same factor on all ranks.
  void set_adaptive_factor(double factor);

  /// Where ranks may be lost, drops the exchanges that fail for it.
  void drain();
  /// The next step mixes nothing. After drain(), when Python has written parameters.
  void forget_arrived();
  /// Copies the model's parameters into the master copies, where there are such.
  void write_masters();
  /// Collective. The model becomes the mean of all; returns the distance of this rank's own.
  double average();
  /// Gives this rank's own model back, or keeps the mean for good.
  void end_average(bool keep);
  void switch_to(const std::string& options);
  void replan(std::int64_t bucket_bytes) { model().replan(bucket_bytes); }

  // Where ranks may be lost (PySession::is_elastic()), the engine begins detached. The functions
  // below are Pipeline's.

  [[nodiscard]] bool is_detached() const { return model().is_detached(); }
  [[nodiscard]] bool has_uncommitted_step() const { return model().has_uncommitted_step(); }
  /// The steps of this rank, an uncommitted one included: the number for PySession::reconfigure().
  [[nodiscard]] std::int64_t num_steps() const;
  void detach() { model().detach(); }
  void catch_up(std::int64_t num_steps) { model().catch_up(num_steps); }
  /// Collective. `options`: YAML, with the algorithm and the topology. If the topology does not fit
  /// the world, another one takes its place (fallback_topology()). `joins` and `averages` have the
  /// meanings that they have in Pipeline::Resume.
  void resume(const std::string& options, bool joins, bool averages);

  // The functions below are defined in engine_state.cpp.

  /// The updates of every parameter so far. On a GPU, the last step counts here even if it is left
  /// out; metrics() waits until that is known.
  [[nodiscard]] std::vector<std::int64_t> updates() const;
  /// Goes on as if each parameter had been updated so many times.
  void set_updates(const std::vector<std::int64_t>& updates);
  /// A state of the engine's optimizer for a parameter. It shares the engine's memory until
  /// generation() changes. `name` is a state's name in the engine's rule, such as m. Throws
  /// ConfigError where ranks share the optimizer's states (node_gossip with `shard: optimizer`).
  [[nodiscard]] View optimizer_state(std::int64_t index, const std::string& name) const;

  /// Collective, between two steps. A copy of all state of this rank: parameters, optimizer,
  /// algorithm, and the values of `others`, in the form of the program's checkpoints.
  [[nodiscard]] PySnapshot snapshot(const std::vector<OtherTensor>& others);
  /// Collective. Goes on from what a snapshot has written. Also takes a rank's file of a checkpoint
  /// of the program; what only the program knows is left out.
  void load(const std::string& path, const std::vector<OtherTensor>& others);
  /// Collective. Does what snapshot() and load() do, in memory.
  [[nodiscard]] std::vector<StateTensor> state(const std::vector<OtherTensor>& others);
  void load_state(const std::vector<GivenTensor>& state, const std::vector<OtherTensor>& others);

  /// Nanoseconds of the timeline's clock; 0 while nothing is recorded.
  [[nodiscard]] std::int64_t now_ns() const;
  /// Records Python's own work since `start_ns` > 0; `what`: "forward" or "backward".
  void record(const std::string& what, std::int64_t start_ns);
  /// Collective, but not while the engine is detached. Before every step.
  void before_step();
  /// Collective. After the last step: waits for the exchanges under way, and writes the timeline.
  void finish();

  [[nodiscard]] nanobind::dict metrics() const;
  [[nodiscard]] double model_weight() const { return model().model_weight(); }
  [[nodiscard]] bool tries_buckets() const { return model().tries_buckets(); }
  /// Whether the ranks may make different numbers of steps.
  [[nodiscard]] bool is_asynchronous() const { return is_asynchronous_; }
  /// Frees the pipeline. The metrics stay; other calls throw std::logic_error.
  void close();

 private:
  struct Place {
    std::vector<std::int64_t> strides;
    Block block;
    std::shared_ptr<void> owner;
  };

  /// The state of a recording of steps.
  struct Recording {
    /// Nothing: the options ask for no timeline.
    std::optional<StepTimeline> timeline;
    /// When the present step began; 0 while nothing is recorded.
    std::int64_t step_ns = 0;
    /// before_step() has been called for the present step.
    bool has_begun = false;
    /// The steps that were loaded, and not made.
    std::int64_t num_loaded = 0;
  };

  std::vector<ParameterMemory> move_parameters(const BucketPlan& plan) override;
  void parameters_have_moved() override { ++generation_; }
  void drain_parameters() override { drain(); }
  void after_update(const BucketSpec& /*spec*/) override { ++num_updated_; }
  void average_parameters(double weight) override;
  /// Collective. Connects the communicators that reach the model's memory.
  void connect(Device device, const TransportChoice& transport, Pipeline::Config& config);
  /// Throws std::logic_error after close(), and when the session has been closed.
  [[nodiscard]] Pipeline& model() const;
  void visit(StateVisitor& visitor, const std::vector<OtherTensor>& others);
  void load_from(const TensorSource& source, const std::vector<OtherTensor>& others);
  void advance_timeline(bool is_over);
  /// Collective, in a new world.
  void enter_world();
  void record_span(const char* what, std::int64_t start_ns);
  /// Has the edges of a topology follow the adaptive factor, if there is one.
  void adapt(std::shared_ptr<const Topology>& topology) const;
  void apply_rule(std::span<const ExternalStep> steps);
  /// Calls `visit` with every bucket, the place of each parameter in it, and the parameter.
  template <class Visit>
  void for_parameters(const Visit& visit) const;
  [[nodiscard]] View view_of(std::int64_t parameter, const Block& block,
                             std::shared_ptr<void> owner) const;

  std::shared_ptr<PySession> session_;
  /// See the constructor.
  std::optional<IslandSessions> islands_;
  /// The stream of PyTorch's work; null after close().
  std::unique_ptr<FrameworkStream> stream_;
  /// The communicator that reaches the model's memory. The session owns it.
  Communicator* communicator_ = nullptr;
  std::shared_ptr<ExternalSchedule> schedule_ = std::make_shared<ExternalSchedule>();
  /// The factor of mixing; null without the option adaptive_factor.
  std::shared_ptr<ChangingFactor> adaptive_factor_;
  /// The function that takes the place of the engine's optimizer; None: the engine has one.
  nanobind::object rule_;
  std::vector<Place> places_;
  /// Where Python's own gradients of this step lie.
  std::vector<const void*> offered_;
  /// The optimizers that tell() was given, by parameter; null: none was given.
  std::vector<std::shared_ptr<const Optimizer>> told_;
  std::int64_t num_updated_ = 0;
  std::int64_t generation_ = 0;
  bool is_asynchronous_ = false;
  Logger logger_;
  Recording recording_;
  /// The metrics and the progress at close().
  std::pair<PipelineMetrics, Progress> at_close_;
  std::unique_ptr<Pipeline> model_;
  std::unique_ptr<ModelAverage> average_;
  HomeProcess home_;
};

/// Adds the class Engine.
void add_engine(nanobind::module_& module);

}  // namespace gossamer::python
