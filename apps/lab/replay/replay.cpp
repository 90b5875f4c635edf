#include "apps/lab/replay/replay.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/device/rank_device.hpp"
#include "core/bucket/model_average.hpp"
#include "core/step/pipeline.hpp"
#include "optim/registry.hpp"

namespace gossamer::apps {
namespace {

/// Replays the run of one rank.
class RankReplay {
 public:
  RankReplay(Communicator& communicator, const RecordedCase& recorded, const ReplayOptions& options,
             const BucketPlan& plan)
      : device_(options.device, communicator), recorded_(recorded), rank_(communicator.rank()) {
    std::vector<ParameterMemory> memory;
    parameters_.resize(recorded.parameters.size());
    for (const BucketSpec& spec : plan.buckets) {
      memory.push_back(allocate_parameters(spec, stream()));
      for (const BucketEntry& entry : spec.entries) {
        const auto place = static_cast<std::size_t>(entry.parameter);
        parameters_[place] = part_of(memory.back().parameters.block(), entry.offset, numel(place));
      }
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      gradients_.push_back(stream().allocate(numel(i), DType::kFloat32));
      host_.push_back(stream().allocate_host(numel(i), DType::kFloat32));
      write(parameters_[i], i, part(recorded.init.values, i));
    }
    Pipeline::Config config = config_of(recorded, options);
    config.stream = &stream();
    pipeline_ = std::make_unique<Pipeline>(device_.communicator(), std::move(config),
                                           recorded.parameters, plan, std::move(memory));
  }

  void run(ReplayReport& report) {
    for (std::int64_t step = 1; step <= recorded_.steps; ++step) {
      train_step(step);
      compare(recorded_.expected.row({step - 1, rank_}), step, report.steps);
    }
    pipeline_->drain();
    ModelAverage average(device_.communicator(), stream(), pipeline_->memory());
    compare(recorded_.final_avg.values, 0, report.average);
    report.distance_to_center = average.distance();
    average.restore();
  }

 private:
  static Pipeline::Config config_of(const RecordedCase& recorded, const ReplayOptions& options) {
    GradientOptions gradients;
    if (recorded.clip_norm > 0.0) {
      gradients = {.clip_mode = ClipMode::kPerBucket, .clip_norm = recorded.clip_norm};
    }
    return {
        .exchange = {.algorithm = "gossip", .topology = recorded.topology},
        .optimizer = make_optimizer(recorded.optimizer, Options::parse(recorded.optimizer_options)),
        .schedule = recorded.schedule,
        .gradients = gradients,
        .simd = options.simd,
        .num_threads = options.num_threads};
  }

  [[nodiscard]] Stream& stream() { return device_.stream(); }

  /// Writes the values of one parameter into a block, through host memory.
  void write(const Block& block, std::size_t parameter, std::span<const float> values) {
    const Block host = host_[parameter].block();
    stream().synchronize();
    std::ranges::copy(values, host.as<float>().begin());
    stream().copy(block, host);
  }

  [[nodiscard]] std::int64_t numel(std::size_t parameter) const {
    return recorded_.parameters[parameter].numel();
  }

  /// The part of a flat array that belongs to one parameter.
  [[nodiscard]] std::span<const float> part(std::span<const float> flat,
                                            std::size_t parameter) const {
    return flat.subspan(static_cast<std::size_t>(recorded_.offsets[parameter]),
                        static_cast<std::size_t>(numel(parameter)));
  }

  void train_step(std::int64_t step) {
    for (const std::int64_t parameter : recorded_.order) {
      const auto place = static_cast<std::size_t>(parameter);
      std::vector<float> sum(static_cast<std::size_t>(numel(place)));
      for (std::int64_t b = 0; b < recorded_.micro_batches; ++b) {
        const std::int64_t row = (step - 1) * recorded_.micro_batches + b;
        const auto micro = part(recorded_.grads.row({row, rank_}), place);
        // Add as autograd does: take the first gradient over, then add the others in float32.
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = b == 0 ? micro[i] : sum[i] + micro[i];
      }
      write(gradients_[place].block(), place, sum);
      pipeline_->gradient_ready(parameter, gradients_[place].block());
    }
    pipeline_->finish_step();
  }

  void compare(std::span<const float> expected, std::int64_t step, Deviation& largest) {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      stream().copy(host_[p].block(), parameters_[p]);
    }
    stream().synchronize();
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const auto wanted = part(expected, p);
      const auto actual = host_[p].block().as<float>();
      for (std::size_t e = 0; e < wanted.size(); ++e) {
        const auto a = static_cast<double>(actual[e]);
        const auto w = static_cast<double>(wanted[e]);
        // A value that is not finite differs from everything.
        const double error = std::isfinite(a) && std::isfinite(w)
                                 ? std::abs(a - w)
                                 : std::numeric_limits<double>::infinity();
        if (error <= largest.error) continue;
        largest = {error, step, rank_, static_cast<std::int64_t>(p), static_cast<std::int64_t>(e),
                   a,     w};
      }
    }
  }

  RankDevice device_;
  const RecordedCase& recorded_;
  int rank_;
  std::vector<Block> parameters_;
  std::vector<Buffer> gradients_;
  /// Host memory for the elements of each parameter.
  std::vector<Buffer> host_;
  std::unique_ptr<Pipeline> pipeline_;
};

/// The largest deviation of all ranks; of equal ones, the lowest rank's.
Deviation largest_over_ranks(Communicator& communicator, const Deviation& mine) {
  const std::vector<std::string> all =
      communicator.all_gather(std::string(reinterpret_cast<const char*>(&mine), sizeof(Deviation)));
  Deviation largest;
  for (const std::string& bytes : all) {
    Deviation other;
    std::memcpy(&other, bytes.data(), sizeof(Deviation));
    if (other.error > largest.error) largest = other;
  }
  return largest;
}

}  // namespace

bool ReplayReport::passed(double tolerance) const {
  return steps.error <= tolerance && average.error <= tolerance && bucket_difference.empty() &&
         !distance_differs;
}

ReplayReport replay(Communicator& communicator, const RecordedCase& recorded,
                    const ReplayOptions& options) {
  if (communicator.size() != recorded.world_size) {
    throw ConfigError(concat("the case ", recorded.name, " has ", recorded.world_size,
                             " ranks, this world has ", communicator.size(),
                             ", allowed: as many as the case"));
  }
  const std::int64_t limit = options.bucket_bytes.value_or(recorded.bucket_bytes);
  if (recorded.clip_norm > 0.0 && limit != recorded.bucket_bytes) {
    throw ConfigError("command line", "--bucket-bytes",
                      concat("the case ", recorded.name,
                             " clips the gradients of each bucket, so its numbers "
                             "hold for its own buckets alone, allowed: ",
                             recorded.bucket_bytes));
  }
  const BucketPlan plan = plan_buckets(recorded.parameters, recorded.order, limit);
  ReplayReport report;
  report.num_buckets = std::ssize(plan.buckets);
  report.buckets_compared = limit == recorded.bucket_bytes;
  if (report.buckets_compared) report.bucket_difference = compare_buckets(recorded, plan);
  RankReplay(communicator, recorded, options, plan).run(report);
  report.steps = largest_over_ranks(communicator, report.steps);
  report.average = largest_over_ranks(communicator, report.average);
  report.distance_to_center = gather_numbers(communicator, report.distance_to_center)[0];
  if (recorded.distance_to_center) {
    // Each of the N elements may be off by the tolerance twice: in the mean and in the rank's own
    // value.
    const double allowed =
        2.0 * options.tolerance * std::sqrt(static_cast<double>(recorded.init.values.size()));
    const double error = std::abs(report.distance_to_center - *recorded.distance_to_center);
    report.distance_differs = !(error <= allowed);
  }
  return report;
}

}  // namespace gossamer::apps
