#include "python/src/engine.hpp"

#include "python/src/options.hpp"
#include "python/src/pointer.hpp"
#include "python/src/types.hpp"

#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "optim/convert.hpp"
#include "topology/registry.hpp"

namespace gossamer::python {
namespace {

constexpr NumberOption kAdaptiveFactor{
    "adaptive_factor", "the factor that the weights begin with", {.min = 0.0, .max = 1.0}};
constexpr FlagOption kRuleSeesWholeStep{"rule_sees_whole_step",
                                        "the caller's rule takes all buckets at once"};
/// The topology of worlds that the given topology does not fit.
constexpr std::string_view kFallback = "base-k";
constexpr FlagOption kAverage{"average", "the ranks begin the algorithm from their mean"};

namespace nb = nanobind;
using namespace nb::literals;

DType type_named(const std::string& parameter, const std::string& name) {
  for (const TypeName& row : kTypes) {
    if (row.name == name) return row.type;
  }
  throw ConfigError(
      concat("parameter ", parameter, " is ", name, ", allowed: float32, float64, bfloat16"));
}

nb::dlpack::dtype dlpack_type(DType type) {
  for (const TypeName& row : kTypes) {
    if (row.type == type) return {static_cast<std::uint8_t>(row.code), row.bits, 1};
  }
  throw std::logic_error("a tensor of a type that parameters do not have");
}

}  // namespace

Engine::Engine(std::shared_ptr<PySession> session, const std::vector<GivenParameter>& parameters,
               const std::optional<Gpu>& gpu, const std::string& options,
               const nb::object& optimizer, std::optional<IslandSessions> islands)
    : session_(std::move(session)),
      islands_(std::move(islands)),
      rule_(nb::isinstance<nb::str>(optimizer) ? nb::none() : optimizer),
      offered_(parameters.size()),
      told_(parameters.size()) {
  const Device device = device_of(gpu);
  std::vector<ParameterInfo> infos;
  for (const auto& [name, shape, strides, type, address] : parameters) {
    infos.push_back({.name = name, .shape = shape, .dtype = type_named(name, type)});
    void* const data = pointer_to(address);
    places_.push_back({.strides = strides,
                       .block = {data, infos.back().numel(), infos.back().dtype, device},
                       .owner = nullptr});
  }
  const Options root = given_options(options);
  Pipeline::Config read = read_engine_options(root, session_->world());
  if (!session_->shares_memory()) read.exchange.shares_memory = false;
  if (root.has("adaptive_factor")) {
    adaptive_factor_ = std::make_shared<ChangingFactor>(root.read(kAdaptiveFactor));
    adapt(read.exchange.topology);
  }
  logger_ = read.logger;
  const TransportChoice transport = read_transport_choice(root.section("device"));
  read.schedule = schedule_;
  if (rule_.is_none()) {
    read.optimizer = read_optimizer(nb::cast<std::string>(optimizer));
  } else {
    read.external_optimizer = [this](std::span<const ExternalStep> steps) { apply_rule(steps); };
    read.rule_sees_whole_step = root.read(kRuleSeesWholeStep);
  }
  is_asynchronous_ = read.exchange.algorithm.entry().asynchronous();
  if (is_asynchronous_ && read.rule_sees_whole_step) {
    // Each bucket has its own share of the ranks' weight, and the rule has one learning rate.
    read.bucket_bytes = std::numeric_limits<std::int64_t>::max();
  }
  if (auto timeline = read_timeline(root, is_asynchronous_)) {
    recording_.timeline.emplace(session_->communicator(), std::move(*timeline));
    read.timeline = recording_.timeline->timeline();
  }
  root.reject_unknown();
  stream_ = make_framework_stream(gpu);
  read.stream = stream_.get();
  read.begins_detached = session_->is_elastic();
  connect(device, transport, read);
  const ExchangeOptions exchange = read.exchange;
  ParameterHost& host = *this;
  model_ = std::make_unique<Pipeline>(*communicator_, std::move(read), std::move(infos), host);
  model_->check(exchange);
  // A rank that joins has not begun the steps that it will go on from.
  if (!session_->joins()) session_->tell_steps();
}

void Engine::connect(Device device, const TransportChoice& transport, Pipeline::Config& config) {
  const nb::gil_scoped_release free;
  communicator_ = &session_->transport(device, transport, logger_).communicator();
  if (!islands_) return;
  const auto& [node, everyone] = *islands_;
  config.shards = &node->transport(device, transport, logger_).communicator();
  config.everyone = &everyone->transport(device, transport, logger_).communicator();
}

Engine::~Engine() {
  if (!home_.is_here()) {
    // Threads and GPUs that they wait for are the parent's.
    static_cast<void>(average_.release());
    static_cast<void>(model_.release());
    static_cast<void>(stream_.release());
    return;
  }
  const WithoutLock free;
  average_.reset();
  model_.reset();
  stream_.reset();
}

std::vector<ParameterMemory> Engine::move_parameters(const BucketPlan& plan) {
  std::vector<ParameterMemory> memory;
  for (const BucketSpec& spec : plan.buckets) {
    memory.push_back(allocate_parameters(spec, *stream_));
    const Buffer& models = spec.has_master() ? memory.back().rounded : memory.back().parameters;
    for (const BucketEntry& entry : spec.entries) {
      Place& place = places_[static_cast<std::size_t>(entry.parameter)];
      const Block to = part_of(models.block(), entry.offset, place.block.numel);
      if (to.bytes() > 0) stream_->copy(to, place.block);
      place.block = to;
      place.owner = models.owner();
    }
    if (spec.has_master()) {
      enqueue_convert(*stream_, memory.back().parameters.block(), memory.back().rounded.block());
    }
  }
  // The owner of the old memory may free it now.
  stream_->synchronize();
  return memory;
}

void Engine::average_parameters(double weight) {
  std::vector<ParameterMemory> memory;
  for (const Place& place : places_) {
    memory.push_back(memory_of_tensor(Buffer(place.owner, place.block), *stream_));
  }
  ModelAverage(*communicator_, *stream_, std::move(memory), weight);
}

void Engine::set_stream(std::uintptr_t stream) {
  if (stream_) stream_->set_current(pointer_to(stream));
}

std::int64_t Engine::gradient_ready(std::int64_t parameter, std::uintptr_t address) {
  const auto place = static_cast<std::size_t>(parameter);
  const Block& own = places_.at(place).block;
  const void* const data = pointer_to(address);
  offered_[place] = data;
  model().gradient_ready(parameter, {data, own.numel, own.dtype, own.device});
  return num_updated_;
}

void Engine::start() {
  model().make_plan();
  model().start();
}

void Engine::finish_step() {
  recording_.has_begun = false;
  model().finish_step();
  num_updated_ = 0;
  // An uncommitted step still has these gradients.
  if (model().has_uncommitted_step()) return;
  offered_.assign(offered_.size(), nullptr);
}

std::vector<std::vector<std::int64_t>> Engine::buckets() const {
  std::vector<std::vector<std::int64_t>> all;
  for (const BucketSpec& spec : model().plan().buckets) {
    all.emplace_back();
    for (const BucketEntry& entry : spec.entries) all.back().push_back(entry.parameter);
  }
  return all;
}

View Engine::view_of(std::int64_t parameter, const Block& block,
                     std::shared_ptr<void> owner) const {
  const auto place = static_cast<std::size_t>(parameter);
  auto keep = std::make_unique<std::shared_ptr<void>>(std::move(owner));
  const nb::capsule capsule(
      keep.get(), [](void* data) noexcept { delete static_cast<std::shared_ptr<void>*>(data); });
  static_cast<void>(keep.release());
  const auto& shape = model().parameters()[place].shape;
  const std::vector<std::size_t> sizes(shape.begin(), shape.end());
  return {block.data,
          sizes.size(),
          sizes.data(),
          capsule,
          places_[place].strides.data(),
          dlpack_type(block.dtype),
          block.device.type == DeviceType::kCuda ? nb::device::cuda::value : nb::device::cpu::value,
          block.device.index};
}

View Engine::parameter(std::int64_t index) const {
  const Place& place = places_.at(static_cast<std::size_t>(index));
  return view_of(index, place.block, place.owner);
}

View Engine::master(std::int64_t index) const {
  for (const Bucket& bucket : model().buckets()) {
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      if (bucket.spec().entries[static_cast<std::size_t>(entry)].parameter != index) continue;
      const Buffer& masters = bucket.parameters();
      return view_of(index, bucket.part(masters.block(), entry), masters.owner());
    }
  }
  throw std::logic_error("no bucket has the parameter");
}

void Engine::apply_rule(std::span<const ExternalStep> steps) {
  const nb::gil_scoped_acquire gil;
  nb::list buckets;
  nb::list factors;
  nb::list gradients;
  for (const ExternalStep& step : steps) {
    const BucketSpec& spec = model().plan().buckets[static_cast<std::size_t>(step.bucket)];
    for (std::size_t entry = 0; entry < spec.entries.size(); ++entry) {
      const std::int64_t parameter = spec.entries[entry].parameter;
      const ConstBlock& found = step.segments[entry].gradient;
      if (found.data == offered_[static_cast<std::size_t>(parameter)]) continue;
      // A sum over ranks. Python copies it during the call.
      const Block block{const_cast<void*>(found.data), found.numel, found.dtype, found.device};
      gradients.append(nb::make_tuple(
          parameter, found.data == nullptr ? nb::none() : nb::cast(view_of(parameter, block, {}))));
    }
    if (step.decision.apply == 0) continue;
    buckets.append(step.bucket);
    factors.append(step.decision.factor);
  }
  if (buckets.size() == 0) return;
  // Where ranks count for themselves, a rule of whole steps has one bucket.
  rule_(buckets, steps.front().update_scale, factors, gradients);
}

void Engine::tell(const std::vector<std::int64_t>& parameters, double lr, double weight_decay,
                  const std::string& optimizer) {
  const auto told = optimizer.empty() ? nullptr : read_optimizer(optimizer);
  for (const std::int64_t parameter : parameters) {
    std::shared_ptr<const Optimizer>& own = told_.at(static_cast<std::size_t>(parameter));
    if (told) own = told;
    model().set_settings(parameter, {.lr = lr, .weight_decay = weight_decay, .optimizer = own});
  }
}

void Engine::set_adaptive_factor(double factor) {
  if (!adaptive_factor_) {
    throw std::logic_error("set_adaptive_factor() without the option adaptive_factor");
  }
  adaptive_factor_->change(factor, model().progress().round());
}

std::string Engine::take_nonfinite() { return model().take_nonfinite(); }

double Engine::gradient_norm() const { return model().gradient_norm(); }
double Engine::recipe_factor() const { return model().recipe_factor(); }

void Engine::drain() {
  if (!session_->is_elastic()) return model().drain();
  if (model().is_detached()) return;
  try {
    model().drain();
  } catch (const PeerLost&) {
    // Nothing is under way from here on. The end of the next step sees the loss.
    model().detach();
  }
}

void Engine::forget_arrived() { model().forget_arrived(); }

void Engine::write_masters() {
  for (const Bucket& bucket : model().buckets()) {
    if (!bucket.spec().has_master()) continue;
    enqueue_convert(*stream_, bucket.parameters().block(), bucket.model_memory().rounded.block());
  }
}

double Engine::average() {
  model().skip_trial();
  drain();
  average_ = std::make_unique<ModelAverage>(*communicator_, *stream_, model().memory(),
                                            model().model_weight());
  return average_->distance();
}

void Engine::end_average(bool keep) {
  if (!average_) throw std::logic_error("end_average() without average()");
  if (keep) {
    forget_arrived();
  } else {
    average_->restore();
  }
  average_.reset();
}

void Engine::switch_to(const std::string& options) {
  const Options root = given_options(options);
  const bool average = root.read(kAverage);
  const ExchangeOptions next = read_exchange(root, session_->world());
  root.reject_unknown();
  model().switch_to({.algorithm = next.algorithm, .topology = next.topology, .average = average});
}

void Engine::adapt(std::shared_ptr<const Topology>& topology) const {
  if (adaptive_factor_) topology = with_edge_weights(topology, adaptive_factor(adaptive_factor_));
}

std::int64_t Engine::num_steps() const {
  if (!model_) return at_close_.second.num_steps;
  return model().progress().num_steps + (model().has_uncommitted_step() ? 1 : 0);
}

void Engine::resume(const std::string& options, bool joins, bool averages) {
  ExchangeOptions next = read_exchange(given_options(options), session_->world(), kFallback);
  adapt(next.topology);
  model().resume(
      {.to = {.algorithm = next.algorithm, .topology = next.topology, .average = averages},
       .joins = joins});
  num_updated_ = 0;
  offered_.assign(offered_.size(), nullptr);
  if (recording_.timeline) enter_world();
}

void Engine::enter_world() {
  // A rank that joins has loaded nothing.
  const std::vector<std::string> loaded =
      session_->communicator().all_gather(concat(recording_.num_loaded));
  parse_whole(loaded.front(), recording_.num_loaded);
  recording_.timeline->enter_world(model().progress().num_steps - recording_.num_loaded);
  // Some ranks have begun the next step already, and all begin it in this world.
  if (recording_.has_begun) advance_timeline(/*is_over=*/false);
}

std::int64_t Engine::now_ns() const {
  const bool records = recording_.timeline && recording_.timeline->timeline()->step() >= 0;
  return records ? recording_.timeline->timeline()->now_ns() : 0;
}

void Engine::record(const std::string& what, std::int64_t start_ns) {
  record_span(what == "forward" ? "forward" : "backward", start_ns);
}

void Engine::record_span(const char* what, std::int64_t start_ns) {
  if (now_ns() == 0 || start_ns == 0) return;
  TimelineSpan span{.label = {.what = what},
                    .step = recording_.timeline->timeline()->step(),
                    .start_ns = start_ns,
                    .end_ns = now_ns()};
  recording_.timeline->timeline()->record(span);
}

void Engine::before_step() {
  record_span("step", recording_.step_ns);
  recording_.has_begun = true;
  try {
    if (!model().is_detached()) {
      advance_timeline(/*is_over=*/false);
    } else if (recording_.timeline && recording_.timeline->timeline()->step() >= 0) {
      recording_.timeline->timeline()->begin_step(model().progress().num_steps + 1);
    }
  } catch (const PeerLost&) {
    // The end of the step sees the loss, and resume() begins the step anew.
    if (!session_->is_elastic()) throw;
  }
  recording_.step_ns = now_ns();
}

void Engine::finish() {
  drain();
  advance_timeline(/*is_over=*/true);
}

void Engine::advance_timeline(bool is_over) {
  if (!recording_.timeline) return;
  recording_.timeline->advance(
      is_over ? std::nullopt : std::optional(model().progress().num_steps + 1), [this] { drain(); },
      logger_);
}

nb::dict Engine::metrics() const {
  const auto [metrics, progress] = [this] {
    // On a GPU it may not be known yet how the last step has ended.
    const nb::gil_scoped_release free;
    return model_ ? std::pair(model_->metrics(), model_->progress()) : at_close_;
  }();
  nb::dict all;
  all["steps"] = progress.num_steps;
  all["skipped_steps"] = progress.num_skipped;
  all["bytes_sent"] = metrics.bytes_sent;
  all["wait_s"] = metrics.wait_s;
  all["update_s"] = metrics.update_s;
  all["pipeline_s"] = metrics.pipeline_s;
  all["wide_differences"] = metrics.num_wide_differences;
  return all;
}

Pipeline& Engine::model() const {
  if (!model_) throw std::logic_error("the engine has been closed");
  if (!session_->is_open()) throw std::logic_error("the engine's session has been closed");
  return *model_;
}

void Engine::close() {
  if (!model_ || !home_.is_here()) return;
  try {
    at_close_ = {model_->metrics(), model_->progress()};
  } catch (
      const std::exception&) {  // NOLINT(bugprone-empty-catch): a step has failed, and was told
  }
  average_.reset();
  model_.reset();
  stream_.reset();
}

void add_engine(nb::module_& module) {
  using Free = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Engine>(module, "Engine")
      .def(nb::init<std::shared_ptr<PySession>, const std::vector<GivenParameter>&,
                    const std::optional<Gpu>&, const std::string&, const nb::object&,
                    std::optional<IslandSessions>>(),
           "session"_a, "parameters"_a, "gpu"_a.none(), "options"_a, "optimizer"_a,
           "islands"_a.none() = nb::none())
      .def("set_stream", &Engine::set_stream, "stream"_a)
      .def("arrived", &Engine::arrived, "parameter"_a)
      .def("gradient_ready", &Engine::gradient_ready, "parameter"_a, "address"_a, Free())
      .def("start", &Engine::start, Free())
      .def("finish_step", &Engine::finish_step, Free())
      .def_prop_ro("has_started", &Engine::has_started)
      .def_prop_ro("generation", &Engine::generation)
      .def("buckets", &Engine::buckets)
      .def("parameter", &Engine::parameter, "index"_a)
      .def("master", &Engine::master, "index"_a)
      .def("updates", &Engine::updates)
      .def("set_updates", &Engine::set_updates, "updates"_a)
      .def("optimizer_state", &Engine::optimizer_state, "index"_a, "name"_a)
      .def("tell_lr", &Engine::tell_lr, "lr"_a)
      .def("tell", &Engine::tell, "parameters"_a, "lr"_a, "weight_decay"_a, "optimizer"_a = "")
      .def("take_nonfinite", &Engine::take_nonfinite, Free())
      .def("set_gradient_scale", &Engine::set_gradient_scale, "scale"_a)
      .def("set_clip_norm", &Engine::set_clip_norm, "norm"_a)
      .def("gradient_norm", &Engine::gradient_norm, Free())
      .def_prop_ro("recipe_factor", &Engine::recipe_factor)
      .def("set_adaptive_factor", &Engine::set_adaptive_factor, "factor"_a)
      .def("drain", &Engine::drain, Free())
      .def("forget_arrived", &Engine::forget_arrived, Free())
      .def("write_masters", &Engine::write_masters, Free())
      .def("average", &Engine::average, Free())
      .def("end_average", &Engine::end_average, "keep"_a = false, Free())
      .def("switch_to", &Engine::switch_to, "options"_a, Free())
      .def("replan", &Engine::replan, "bucket_bytes"_a, Free())
      .def_prop_ro("is_detached", &Engine::is_detached)
      .def_prop_ro("has_uncommitted_step", &Engine::has_uncommitted_step)
      .def("num_steps", &Engine::num_steps, Free())
      .def("detach", &Engine::detach, Free())
      .def("catch_up", &Engine::catch_up, "num_steps"_a, Free())
      .def("resume", &Engine::resume, "options"_a, "joins"_a, "averages"_a, Free())
      .def("snapshot", &Engine::snapshot, "others"_a, Free())
      .def("load", &Engine::load, "path"_a, "others"_a, Free())
      .def("state", &Engine::state, "others"_a, Free())
      .def("load_state", &Engine::load_state, "state"_a, "others"_a, Free())
      .def("now_ns", &Engine::now_ns)
      .def("record", &Engine::record, "what"_a, "start_ns"_a)
      .def("before_step", &Engine::before_step, Free())
      .def("finish", &Engine::finish, Free())
      .def("metrics", &Engine::metrics, nb::sig("def metrics(self) -> dict[str, float]"))
      .def_prop_ro("model_weight", &Engine::model_weight)
      .def_prop_ro("is_asynchronous", &Engine::is_asynchronous)
      .def_prop_ro("tries_buckets", &Engine::tries_buckets)
      .def("close", &Engine::close, Free());
}

}  // namespace gossamer::python
