#pragma once
// A model of one rank without autograd. Its parameters are in the buckets of a real Pipeline; the
// test gives the gradients. Outside, values are doubles, flat in declared order.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "core/step/pipeline.hpp"

namespace gossamer {

inline std::vector<double> read_block(const ConstBlock& block) {
  if (block.dtype == DType::kBFloat16) {
    std::vector<double> values;
    for (const BFloat16 value : block.as<BFloat16>()) {
      values.push_back(static_cast<double>(widened(value)));
    }
    return values;
  }
  if (block.dtype == DType::kFloat32) {
    const auto values = block.as<float>();
    return {values.begin(), values.end()};
  }
  const auto values = block.as<double>();
  return {values.begin(), values.end()};
}

inline void write_block(const Block& block, std::span<const double> values) {
  if (block.dtype == DType::kBFloat16) {
    std::ranges::transform(values, block.as<BFloat16>().begin(),
                           [](double x) { return rounded_to_bfloat16(static_cast<float>(x)); });
    return;
  }
  if (block.dtype == DType::kFloat32) {
    std::ranges::transform(values, block.as<float>().begin(),
                           [](double x) { return static_cast<float>(x); });
  } else {
    std::ranges::copy(values, block.as<double>().begin());
  }
}

inline std::vector<ParameterMemory> memory_of(const BucketPlan& plan, Stream& stream) {
  std::vector<ParameterMemory> memory;
  for (const BucketSpec& spec : plan.buckets) memory.push_back(allocate_parameters(spec, stream));
  return memory;
}

inline std::vector<std::int64_t> declared_order(std::size_t count) {
  std::vector<std::int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// Parameters p0, p1, ... of one dimension.
inline std::vector<ParameterInfo> parameters_of_sizes(const std::vector<std::int64_t>& sizes,
                                                      DType dtype, double weight_decay = 0.0) {
  std::vector<ParameterInfo> infos;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    infos.push_back(
        {.name = concat("p", i),
         // For optimizers of matrices.
         .shape = {sizes[i] % 2 == 0 ? 2 : 1, sizes[i] % 2 == 0 ? sizes[i] / 2 : sizes[i]},
         .dtype = dtype,
         .weight_decay = weight_decay});
  }
  return infos;
}

class ToyModel {
 public:
  ToyModel(Communicator& communicator, Pipeline::Config config, std::vector<ParameterInfo> infos,
           const BucketPlan& plan, std::span<const double> initial)
      : stream_(config.stream != nullptr ? config.stream : &inline_stream_),
        infos_(std::move(infos)) {
    config.stream = stream_;
    std::vector<ParameterMemory> memory = place_parameters(plan);
    for (const ParameterInfo& info : infos_) {
      offsets_.push_back(num_values_);
      num_values_ += info.numel();
      gradients_.push_back(stream_->allocate(info.numel(), info.dtype));
      host_gradients_.push_back(mirror_of(gradients_.back().block()));
    }
    write(initial);
    pipeline_ = std::make_unique<Pipeline>(communicator, std::move(config), infos_, plan,
                                           std::move(memory));
  }

  /// Goes on with other buckets.
  void replan(std::int64_t bucket_bytes) {
    const BucketPlan plan = plan_buckets(infos_, declared_order(infos_.size()), bucket_bytes);
    // Work on the stream may still read the old places.
    pipeline_->drain();
    pipeline_->replan(plan, place_parameters(plan));
  }

  ToyModel(const ToyModel&) = delete;
  ToyModel& operator=(const ToyModel&) = delete;

  [[nodiscard]] Pipeline& pipeline() { return *pipeline_; }
  [[nodiscard]] Stream& stream() { return *stream_; }
  [[nodiscard]] Block parameter(std::int64_t index) const {
    return parameters_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::int64_t num_parameters() const {
    return static_cast<std::int64_t>(infos_.size());
  }
  /// The index of a parameter's first element among all values.
  [[nodiscard]] std::int64_t offset(std::int64_t index) const {
    return offsets_[static_cast<std::size_t>(index)];
  }

  [[nodiscard]] std::vector<double> values() const {
    fetch();
    stream_->synchronize();
    return values_now();
  }

  /// Copies the values to the host, as work on the stream. Does nothing where they are there.
  void fetch() const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      copy(host_parameters_[i], parameters_[i]);
      copy(host_rounded_[i], rounded_[i]);
    }
  }

  /// The values of this moment, or of the last fetch() where the host does not reach them; call it
  /// as work on the stream. Throws std::logic_error if a bfloat16 model is not the rounded copy of
  /// its parameters.
  [[nodiscard]] std::vector<double> values_now() const {
    std::vector<double> all;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const std::vector<double> values = read_block(host_parameters_[i]);
      if (rounded_[i].data != nullptr) {
        for (std::size_t e = 0; e < values.size(); ++e) {
          const BFloat16 expected = rounded_to_bfloat16(static_cast<float>(values[e]));
          if (host_rounded_[i].as<BFloat16>()[e] == expected) continue;
          throw std::logic_error(concat("p", i, " and its rounded copy differ in element ", e));
        }
      }
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  void write(std::span<const double> all) {
    stream_->synchronize();
    for (std::size_t i = 0; i < infos_.size(); ++i) {
      const auto values = part(all, static_cast<std::int64_t>(i));
      write_block(host_parameters_[i], values);
      copy(parameters_[i], host_parameters_[i]);
      if (rounded_[i].data == nullptr) continue;
      write_block(host_rounded_[i], values);
      copy(rounded_[i], host_rounded_[i]);
    }
  }

  /// Offers one parameter its part of a flat gradient, which is written as work on the stream.
  void offer(std::int64_t index, std::shared_ptr<const std::vector<double>> flat_gradient) {
    const Block gradient = gradients_[static_cast<std::size_t>(index)].block();
    const Block on_host = host_gradients_[static_cast<std::size_t>(index)];
    stream_->run([this, index, on_host, all = std::move(flat_gradient)] {
      write_block(on_host, part(*all, index));
    });
    copy(gradient, on_host);
    pipeline_->gradient_ready(index, gradient);
  }
  void offer(std::int64_t index, std::span<const double> flat_gradient) {
    offer(index,
          std::make_shared<const std::vector<double>>(flat_gradient.begin(), flat_gradient.end()));
  }

  /// A whole step with a gradient for every parameter, in declared order.
  void step(std::span<const double> flat_gradient) {
    for (std::int64_t i = 0; i < num_parameters(); ++i) offer(i, flat_gradient);
    pipeline_->finish_step();
  }

 private:
  /// New memory for the parameters; their values do not move.
  std::vector<ParameterMemory> place_parameters(const BucketPlan& plan) {
    std::vector<ParameterMemory> memory = memory_of(plan, *stream_);
    parameters_.resize(infos_.size());
    rounded_.resize(infos_.size());
    host_parameters_.resize(infos_.size());
    host_rounded_.resize(infos_.size());
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      for (const BucketEntry& entry : plan.buckets[b].entries) {
        const auto place = static_cast<std::size_t>(entry.parameter);
        const std::int64_t numel = infos_[place].numel();
        parameters_[place] = part_of(memory[b].parameters.block(), entry.offset, numel);
        host_parameters_[place] = mirror_of(parameters_[place]);
        if (plan.buckets[b].has_master()) {
          rounded_[place] = part_of(memory[b].rounded.block(), entry.offset, numel);
          host_rounded_[place] = mirror_of(rounded_[place]);
        }
      }
    }
    return memory;
  }

  /// The block itself where the host reaches it, else host memory of the same size.
  Block mirror_of(const Block& block) {
    if (stream_->on_host()) return block;
    mirrors_.push_back(stream_->allocate_host(block.numel, block.dtype));
    return mirrors_.back().block();
  }
  void copy(const Block& to, const ConstBlock& from) const {
    if (to.data != from.data) stream_->copy(to, from);
  }

  [[nodiscard]] std::span<const double> part(std::span<const double> all, std::int64_t i) const {
    const auto place = static_cast<std::size_t>(i);
    return all.subspan(static_cast<std::size_t>(offsets_[place]),
                       static_cast<std::size_t>(infos_[place].numel()));
  }

  InlineStream inline_stream_;
  Stream* stream_;
  std::vector<ParameterInfo> infos_;
  std::vector<std::int64_t> offsets_;
  std::int64_t num_values_ = 0;
  std::vector<Block> parameters_;
  /// Null data: there is none.
  std::vector<Block> rounded_;
  std::vector<Buffer> gradients_;
  /// Of parameters_, rounded_ and gradients_, as mirror_of().
  std::vector<Block> host_parameters_;
  std::vector<Block> host_rounded_;
  std::vector<Block> host_gradients_;
  std::vector<Buffer> mirrors_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace gossamer
