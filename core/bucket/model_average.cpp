#include "core/bucket/model_average.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "optim/block_update.hpp"
#include "optim/convert.hpp"
#include "optim/swap_with_mean.hpp"

namespace gossamer {

ModelAverage::ModelAverage(Communicator& communicator, Stream& stream,
                           std::vector<ParameterMemory> memory, double weight)
    : stream_(stream), memory_(std::move(memory)) {
  const auto count = std::ssize(memory_);
  const Buffer squares = stream.allocate(count, DType::kFloat64);
  const Buffer report = stream.allocate_host(count, DType::kFloat64);
  std::vector<Buffer> scratch;
  std::vector<Request> requests;
  const SynchronizedScope scope(stream);
  std::size_t num_swapped = 0;
  for (const auto& [parameters, rounded] : memory_) {
    const Block block = parameters.block();
    const Buffer& sum = saved_.emplace_back(stream.allocate(block.numel, block.dtype));
    Buffer part = parameters;
    if (weight == 0.0) {
      // Zeros, because 0 times a value that is not finite is none.
      part = stream.allocate(block.numel, block.dtype);
      stream.zero(part.block());
    } else if (weight != 1.0) {
      part = stream.allocate(block.numel, block.dtype);
      enqueue_mix(stream, part.block(), 0.0, {{block, weight}});
    }
    requests.push_back(communicator.all_reduce_sum(part.block(), sum.block(),
                                                   {.label = {.what = "average"},
                                                    .owner = both(part.owner(), sum.owner()),
                                                    .ready = stream.record()}));
  }
  try {
    for (std::size_t b = 0; b < memory_.size(); ++b) {
      requests[b].wait_on(stream);
      const Block block = memory_[b].parameters.block();
      scratch.push_back(stream.allocate(swap_scratch_numel(block.numel), DType::kFloat64));
      enqueue_swap_with_mean(stream, {.x = block,
                                      .sum = saved_[b].block(),
                                      .size = communicator.size(),
                                      .scratch = scratch[b].block(),
                                      .squares = static_cast<double*>(squares.block().data) + b});
      ++num_swapped;
    }
    write_rounded();
    stream.copy(report.block(), squares.block());
    stream.synchronize();
    // A GPU's stream goes on when an exchange is aborted, so ask the communicator for its error.
    communicator.check();
  } catch (const PeerLost&) {
    restore(num_swapped);
    throw;
  }
  double sum = 0.0;
  for (const double part : report.block().as<double>()) sum += part;
  distance_ = std::sqrt(sum);
}

void ModelAverage::restore() { restore(memory_.size()); }

void ModelAverage::restore(std::size_t num_blocks) {
  for (std::size_t b = 0; b < num_blocks; ++b) {
    stream_.copy(memory_[b].parameters.block(), saved_[b].block());
  }
  write_rounded();
  for (std::size_t b = 0; b < num_blocks; ++b) {
    const auto& [parameters, rounded] = memory_[b];
    stream_.keep(both(saved_[b].owner(), both(parameters.owner(), rounded.owner())));
  }
}

void ModelAverage::write_rounded() {
  for (const auto& [parameters, rounded] : memory_) {
    if (rounded.block().data != nullptr)
      enqueue_convert(stream_, rounded.block(), parameters.block());
  }
}

void SharedNumbers::block(const std::string& name, const Block& /*block*/) {
  throw std::logic_error(concat("SharedNumbers: ", name, " is a block"));
}

void SharedNumbers::number(const std::string& /*name*/, double& value) {
  if (is_shared_) {
    value = numbers_.at(next_++);
    return;
  }
  numbers_.push_back(value);
  is_integer_.push_back(false);
}

void SharedNumbers::number(const std::string& /*name*/, std::int64_t& value) {
  if (is_shared_) {
    value = static_cast<std::int64_t>(numbers_.at(next_++));
    return;
  }
  // Counts are far below 2^53.
  numbers_.push_back(static_cast<double>(value));
  is_integer_.push_back(true);
}

void SharedNumbers::share(Communicator& communicator, double weight) {
  const std::size_t count = numbers_.size();
  const auto size = static_cast<std::size_t>(communicator.size());
  std::vector<double> all(size * count);
  for (std::size_t i = 0; i < count; ++i) {
    // A number that does not count may be infinite, so no weight multiplies it.
    const double own = weight == 0.0 ? 0.0 : numbers_[i];
    all[static_cast<std::size_t>(communicator.rank()) * count + i] =
        is_integer_[i] ? own : weight * own;
  }
  all = sum_over_ranks(communicator, std::move(all));
  for (std::size_t i = 0; i < count; ++i) {
    double sum = 0.0;
    double most = all[i];
    for (std::size_t rank = 0; rank < size; ++rank) {
      sum += all[rank * count + i];
      most = std::max(most, all[rank * count + i]);
    }
    numbers_[i] = is_integer_[i] ? most : sum / static_cast<double>(size);
  }
  is_shared_ = true;
}

MeanWeight mean_weight(Communicator& communicator, bool counts) {
  const std::vector<double> all = gather_numbers(communicator, counts ? 1.0 : 0.0);
  const double num_counting = std::accumulate(all.begin(), all.end(), 0.0);
  if (num_counting == 0.0) {
    throw CommError(
        {.rank = own_world_rank(communicator), .label = {.what = "resume"}},
        "no rank that is left has the model; continue the run from its last checkpoint");
  }
  return {.weight = counts ? communicator.size() / num_counting : 0.0,
          .num_counting = static_cast<int>(num_counting)};
}

std::vector<double> sum_over_ranks(Communicator& communicator, std::vector<double> numbers) {
  struct Memory {
    std::vector<double> numbers;
    std::vector<double> sums;
  };
  // Owned by the operation too: a failure may end this call while the worker still writes.
  const auto memory = std::make_shared<Memory>();
  memory->sums.resize(numbers.size());
  memory->numbers = std::move(numbers);
  communicator
      .all_reduce_sum(block_of(std::span(memory->numbers)), block_of(std::span(memory->sums)),
                      {.label = {.what = "sum"}, .owner = memory})
      .wait();
  return std::move(memory->sums);
}

std::vector<double> gather_numbers(Communicator& communicator, double number) {
  std::vector<double> mine(static_cast<std::size_t>(communicator.size()));
  mine[static_cast<std::size_t>(communicator.rank())] = number;
  return sum_over_ranks(communicator, std::move(mine));
}

}  // namespace gossamer
