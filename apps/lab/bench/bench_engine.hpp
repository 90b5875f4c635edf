#pragma once
// One engine of `gossamer bench step` at work, with its own model. All engines see the same
// batches. Only step_bench.cpp includes this file. Not thread safe.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/nn/functional/loss.h>

#include "apps/lab/bench/kernel_bench.hpp"
#include "apps/lab/bench/reference_task.hpp"
#include "apps/lab/bench/statistics.hpp"
#include "apps/lab/bench/step_bench.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "base/timeline.hpp"
#include "base/yaml.hpp"
#include "core/torch/data_parallel.hpp"
#include "core/trace/step_timeline.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {

inline double seconds_between(std::chrono::steady_clock::time_point first,
                              std::chrono::steady_clock::time_point last) {
  return std::chrono::duration<double>(last - first).count();
}

/// Seconds of the parts of one step, by name.
using Row = std::map<std::string, double>;

inline std::vector<double> column(const std::vector<Row>& rows, const std::string& name) {
  std::vector<double> values;
  for (const Row& row : rows) values.push_back(row.at(name));
  return values;
}

inline std::shared_ptr<const Topology> read_bench_topology(const StepBenchOptions& options,
                                                           const World& world) {
  const YamlNode root = parse_yaml(concat("topology: ", options.topology), "--topology");
  return read_topology(Options(root).named_section("topology"), world, std::nullopt,
                       options.own.topologies);
}

inline std::int64_t num_warmup(const StepBenchOptions& options) {
  return std::max<std::int64_t>(options.warmup, 3);
}

class BenchEngine {
  using Clock = std::chrono::steady_clock;

 public:
  /// `records`: the timeline is about this engine.
  BenchEngine(const StepEngine& engine, const ReferenceTask& task, Communicator& communicator,
              const World& world, const StepBenchOptions& options, bool records)
      : engine_(engine),
        communicator_(communicator),
        net_(task.make_model()),
        extra_time_(world.rank == options.slow_rank ? options.slowdown - 1.0 : 0.0),
        sleep_s_(1e-3 * options.sleep_ms) {
    if (records) open_timeline(options);
    net_->train();
    for (const torch::Tensor& parameter : net_->parameters()) num_parameters_ += parameter.numel();
    if (engine.algorithm()) {
      wrapper_.emplace(net_, communicator, wrapper_options(world, options));
    }
  }

  [[nodiscard]] const StepEngine& engine() const { return engine_; }
  [[nodiscard]] std::int64_t num_parameters() const { return num_parameters_; }
  [[nodiscard]] std::int64_t num_buckets() const {
    return wrapper_ ? std::ssize(wrapper_->engine().plan().buckets) : 0;
  }
  [[nodiscard]] bool tries_buckets() const {
    return wrapper_ && wrapper_->engine().tries_buckets();
  }
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  /// The median step time of each turn, in seconds.
  [[nodiscard]] const std::vector<double>& turns() const { return turns_; }

  void keep_turn(const std::vector<Row>& rows) {
    turns_.push_back(median(column(rows, "total")));
    rows_.insert(rows_.end(), rows.begin(), rows.end());
  }

  Row step(const std::vector<Batch>& pool) {
    const Batch& batch = pool[losses_.size() % pool.size()];
    advance_timeline();
    const PipelineMetrics before = metrics();
    const double cpu_before = communicator_.worker_cpu_s();
    const TimelineScope scope(timeline_.get(), {.what = "step"});
    const auto begin = Clock::now();
    torch::Tensor loss = forward(batch);
    const double forward_s = seconds_between(begin, Clock::now());
    if (sleep_s_ > 0.0) {
      sleep((1.0 + extra_time_) * sleep_s_);
    } else if (extra_time_ > 0.0) {
      sleep(extra_time_ * compute_s_);
    }
    const auto middle = Clock::now();
    backward(loss);
    const auto end = Clock::now();
    losses_.push_back(loss.item<double>());
    Row row = {{"total", seconds_between(begin, end)},
               {"forward", forward_s},
               {"backward", seconds_between(middle, end)}};
    if (wrapper_) {
      const double hooks = metrics().pipeline_s - before.pipeline_s;
      row["backward"] -= hooks;
      row["hooks"] = hooks;
      row["comm_wait"] = metrics().wait_s - before.wait_s;
      row["mix_update_launch"] = hooks - row["comm_wait"];
      row["comm_cpu"] = communicator_.worker_cpu_s() - cpu_before;
    }
    compute_s_ = row["forward"] + row["backward"];
    return row;
  }

  void drain() {
    if (wrapper_) wrapper_->drain();
  }

  /// Collective. Writes the timeline, if there is one and it has not been written.
  void finish_timeline() {
    if (!step_timeline_) return;
    tell([this] { return step_timeline_->finish([this] { drain(); }); });
  }
  /// A sentence about the timeline; empty except on rank 0.
  [[nodiscard]] const std::string& timeline_text() const { return timeline_text_; }

 private:
  void open_timeline(const StepBenchOptions& options) {
    step_timeline_.emplace(communicator_, StepTimeline::Config{.path = options.timeline});
    step_timeline_->set_steps(options.timeline_steps.value_or(
        default_timeline_steps(num_warmup(options) + options.steps)));
    timeline_ = step_timeline_->timeline();
  }

  void advance_timeline() {
    if (!step_timeline_) return;
    const std::int64_t step = std::ssize(losses_) + 1;
    tell([&] { return step_timeline_->before_step(step, [this] { drain(); }); });
  }

  /// Keeps what a call of the timeline says. The measurements are fine if no file can be written.
  template <class Call>
  void tell(const Call& call) {
    try {
      const std::string text = call();
      if (!text.empty()) timeline_text_ = text;
    } catch (const CheckpointError& error) {
      timeline_text_ = concat("the timeline could not be written: ", error.what());
    }
  }

  void sleep(double seconds) const {
    const TimelineScope scope(timeline_.get(), {.what = "sleep"});
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  torch::Tensor forward(const Batch& batch) {
    const TimelineScope scope(timeline_.get(), {.what = "forward"});
    return torch::nn::functional::cross_entropy(net_->forward(batch.inputs), batch.targets);
  }

  void backward(const torch::Tensor& loss) {
    const TimelineScope scope(timeline_.get(), {.what = "backward"});
    loss.backward();
    if (!wrapper_) net_->zero_grad(/*set_to_none=*/true);
  }

  /// Null: the engine sends its blocks as they are.
  [[nodiscard]] const Codec* codec_of(const StepBenchOptions& options) const {
    const Codec* const codec = find_codec(options.codec, options.own.codecs);
    return engine_.takes(codec) ? codec : nullptr;
  }

  DataParallelOptions wrapper_options(const World& world, const StepBenchOptions& options) const {
    return {.exchange = {.algorithm = *engine_.algorithm(),
                         .topology = engine_.needs_topology() ? read_bench_topology(options, world)
                                                              : nullptr,
                         .codec = codec_of(options),
                         .shares_memory = options.shares_memory},
            .optimizer = make_optimizer(
                options.optimizer,
                Options(parse_yaml(options_yaml(options.optimizer, options.accum_iter), "--optim")),
                options.own.optimizers),
            .schedule = make_schedule("constant", {.lr = options.lr}),
            .weight_decay = options.weight_decay,
            .decay_bias_and_norm = true,
            .num_threads = options.threads,
            .bucket_bytes = static_cast<std::int64_t>(options.bucket_mb * 1024.0 * 1024.0),
            .timeline = timeline_};
  }

  [[nodiscard]] PipelineMetrics metrics() const {
    return wrapper_ ? wrapper_->engine().metrics() : PipelineMetrics();
  }

  StepEngine engine_;
  Communicator& communicator_;
  std::shared_ptr<Model> net_;
  std::optional<StepTimeline> step_timeline_;
  /// Null: nothing is recorded.
  std::shared_ptr<Timeline> timeline_;
  std::string timeline_text_;
  std::int64_t num_parameters_ = 0;
  /// The time that a slow rank sleeps, as a multiple of the time in which it computes.
  double extra_time_;
  /// The time that every rank sleeps in place of the time in which it computes; 0: it computes.
  double sleep_s_;
  /// Seconds of computing in the last step, without hooks and sleep.
  double compute_s_ = 0.0;
  std::optional<DecentralizedDataParallel<Model>> wrapper_;
  std::vector<double> losses_;
  std::vector<Row> rows_;
  std::vector<double> turns_;
};

}  // namespace gossamer::apps
