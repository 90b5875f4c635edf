#include "apps/lab/bench/reference_task.hpp"

#include <array>
#include <cmath>
#include <functional>

#include "base/registry.hpp"

namespace gossamer::apps {
namespace {

constexpr std::int64_t kPool = 8;
// Tokens of one sample begin at a multiple of this in their stream.
constexpr std::int64_t kTokenStride = 200;
constexpr std::uint64_t kInputs = 1000;
constexpr std::uint64_t kLabels = 2000;
constexpr std::uint64_t kPatterns = 900;
constexpr std::int64_t kNumClasses = 10;
constexpr std::int64_t kVocabulary = 256;
// The share of the class's pattern in an input. Inputs have the variance of uniform noise.
constexpr double kPatternShare = 0.15;

std::uint64_t mix(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15U;
  z = (z ^ z >> 30U) * 0xBF58476D1CE4E5B9U;
  z = (z ^ z >> 27U) * 0x94D049BB133111EBU;
  return z ^ z >> 31U;
}

/// The functions h and u of the header, for one seed and stream.
class NumberSequence {
 public:
  NumberSequence(std::uint64_t seed, std::uint64_t stream) : key_(mix((seed << 32U) + stream)) {}
  [[nodiscard]] std::uint64_t bits(std::int64_t i) const {
    return mix(key_ + static_cast<std::uint64_t>(i));
  }
  [[nodiscard]] double uniform(std::int64_t i) const {
    return std::ldexp(static_cast<double>(bits(i) >> 40U), -24);
  }
  /// A number in [-1, 1).
  [[nodiscard]] double symmetric(std::int64_t i) const { return 2.0 * uniform(i) - 1.0; }

 private:
  std::uint64_t key_;
};

/// The bound of a parameter's initial values, or the single value of all its elements.
struct Initial {
  double bound = 0.0;
  double constant = 0.0;
};

Initial initial_of_mlp(std::string_view, const torch::Tensor&, std::int64_t fan_in) {
  return {.bound = 1.0 / std::sqrt(static_cast<double>(fan_in))};
}

Initial initial_of_resnet20(std::string_view name, const torch::Tensor& parameter, std::int64_t) {
  if (parameter.dim() == 4) {
    return {.bound = std::sqrt(6.0 / static_cast<double>(parameter.size(1) * 9))};
  }
  if (name.starts_with("fc.")) return {.bound = 0.125};
  return {.constant = name.ends_with("weight") ? 1.0 : 0.0};
}

Initial initial_of_gpt(std::string_view name, const torch::Tensor& parameter, std::int64_t) {
  if (parameter.dim() < 2) return {.constant = name.ends_with("weight") ? 1.0 : 0.0};
  const double bound = 0.02 * std::sqrt(3.0);
  // Two projections in each of six layers write into the residual stream.
  return {.bound = name.ends_with("proj.weight") ? bound / std::sqrt(12.0) : bound};
}

struct TaskEntry {
  std::string_view name;
  SampleShape shape;
  std::string_view options;
  std::int64_t batch_size;
  Initial (*initial)(std::string_view name, const torch::Tensor& parameter, std::int64_t fan_in);
};

constexpr std::array kTasks = {
    TaskEntry{"mlp",
              {.height = 28, .width = 28, .num_outputs = kNumClasses},
              "hidden: 1024, layers: 3",
              64,
              initial_of_mlp},
    TaskEntry{"resnet20",
              {.height = 32, .width = 32, .num_outputs = kNumClasses, .channels = 3},
              "",
              32,
              initial_of_resnet20},
    TaskEntry{"gpt",
              {.height = 1, .width = 128, .num_outputs = kVocabulary},
              "layers: 6, d_model: 384, heads: 6",
              4,
              initial_of_gpt},
};

const TaskEntry& task_of(std::string_view name) { return row_of(kTasks, "model to bench", name); }

}  // namespace

ReferenceTask::ReferenceTask(std::string_view model, std::uint64_t seed)
    : name_(task_of(model).name),
      seed_(seed),
      shape_(task_of(model).shape),
      options_(task_of(model).options) {}

std::vector<std::string> ReferenceTask::model_names() { return names_of(kTasks); }

std::int64_t ReferenceTask::default_batch_size() const { return task_of(name_).batch_size; }

std::shared_ptr<Model> ReferenceTask::make_model() const {
  auto model = configure_model(name_, Options::parse(options_))->make(shape_);
  const torch::NoGradGuard no_grad;
  std::uint64_t stream = 1;
  std::int64_t fan_in = 1;
  for (const auto& entry : model->named_parameters()) {
    torch::Tensor parameter = entry.value();
    // A bias has the fan-in of the matrix that precedes it.
    if (parameter.dim() > 1) fan_in = parameter.size(1);
    const Initial initial = task_of(name_).initial(entry.key(), parameter, fan_in);
    const NumberSequence numbers(seed_, stream++);
    float* values = parameter.data_ptr<float>();
    for (std::int64_t i = 0; i < parameter.numel(); ++i) {
      values[i] = static_cast<float>(initial.bound > 0.0 ? initial.bound * numbers.symmetric(i)
                                                         : initial.constant);
    }
  }
  return model;
}

Batch ReferenceTask::image_batch(int rank, std::int64_t first, std::int64_t count) const {
  const auto r = static_cast<std::uint64_t>(rank);
  const NumberSequence inputs(seed_, kInputs + r);
  const NumberSequence classes(seed_, kLabels + r);
  const std::int64_t numel = shape_.channels * shape_.height * shape_.width;
  const double noise = std::sqrt(3.0);
  Batch batch{torch::empty({count, shape_.channels, shape_.height, shape_.width}, torch::kFloat32),
              torch::empty({count}, torch::kInt64)};
  auto* pixels = batch.inputs.data_ptr<float>();
  auto* labels = batch.targets.data_ptr<std::int64_t>();
  for (std::int64_t sample = first; sample < first + count; ++sample) {
    const std::uint64_t label = classes.bits(sample) % kNumClasses;
    const NumberSequence pattern(seed_, kPatterns + label);
    for (std::int64_t j = 0; j < numel; ++j) {
      *pixels++ = static_cast<float>(noise * inputs.symmetric(sample * numel + j) +
                                     kPatternShare * noise * pattern.symmetric(j));
    }
    *labels++ = static_cast<std::int64_t>(label);
  }
  return batch;
}

Batch ReferenceTask::token_batch(int rank, std::int64_t first, std::int64_t count) const {
  const NumberSequence numbers(seed_, kInputs + static_cast<std::uint64_t>(rank));
  const std::int64_t length = shape_.width;
  Batch batch{torch::empty({count, length}, torch::kInt64),
              torch::empty({count * length}, torch::kInt64)};
  auto* tokens = batch.inputs.data_ptr<std::int64_t>();
  auto* next_tokens = batch.targets.data_ptr<std::int64_t>();
  for (std::int64_t sample = first; sample < first + count; ++sample) {
    std::uint64_t token = numbers.bits(sample * kTokenStride) % kVocabulary;
    for (std::int64_t j = 0; j < length; ++j) {
      *tokens++ = static_cast<std::int64_t>(token);
      token = (5 * token + 7 + (numbers.bits(sample * kTokenStride + j + 1) & 1U)) % kVocabulary;
      *next_tokens++ = static_cast<std::int64_t>(token);
    }
  }
  return batch;
}

std::vector<Batch> ReferenceTask::make_batches(int rank, std::int64_t batch_size) const {
  const bool images = find_model(name_).takes == SampleKind::kArrays;
  std::vector<Batch> batches;
  for (std::int64_t b = 0; b < kPool; ++b) {
    batches.push_back(images ? image_batch(rank, b * batch_size, batch_size)
                             : token_batch(rank, b * batch_size, batch_size));
  }
  return batches;
}

}  // namespace gossamer::apps
