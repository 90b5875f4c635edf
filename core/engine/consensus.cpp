#include "gossamer/core/engine/consensus.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace gossamer {
namespace {

/// On entry `sum` holds the sum over ranks; on return x and its mean have changed places. Returns
/// the squared distance between them.
template <class T>
double swap_with_mean(std::span<T> x, std::span<T> sum, int size) {
  double squares = 0.0;
  const T ranks = static_cast<T>(size);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const T own = x[i];
    const T mean = sum[i] / ranks;
    const double difference = static_cast<double>(mean) - static_cast<double>(own);
    squares += difference * difference;
    x[i] = mean;
    sum[i] = own;
  }
  return squares;
}

}  // namespace

ModelAverage::ModelAverage(Communicator& communicator, std::vector<Block> blocks)
    : blocks_(std::move(blocks)) {
  std::vector<Request> requests;
  for (const Block& block : blocks_) {
    const Buffer& sum = saved_.emplace_back(block.numel, block.dtype);
    requests.push_back(communicator.all_reduce_sum(
        block, sum.block(), {.label = {.what = "average"}, .owner = sum.owner()}));
  }
  for (Request& request : requests) request.wait();
  double squares = 0.0;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const Block sum = saved_[b].block();
    squares += sum.dtype == DType::kFloat32
                   ? swap_with_mean(blocks_[b].as<float>(), sum.as<float>(), communicator.size())
                   : swap_with_mean(blocks_[b].as<double>(), sum.as<double>(), communicator.size());
  }
  distance_ = std::sqrt(squares);
}

void ModelAverage::restore() {
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const Block own = saved_[b].block();
    if (own.numel > 0) {
      std::memcpy(blocks_[b].data, own.data, static_cast<std::size_t>(own.bytes()));
    }
  }
}

std::vector<double> sum_over_ranks(Communicator& communicator, std::vector<double> numbers) {
  std::vector<double> sums(numbers.size());
  communicator
      .all_reduce_sum(block_of(std::span(numbers)), block_of(std::span(sums)),
                      {.label = {.what = "sum"}})
      .wait();
  return sums;
}

std::vector<double> gather_numbers(Communicator& communicator, double number) {
  std::vector<double> mine(static_cast<std::size_t>(communicator.size()));
  mine[static_cast<std::size_t>(communicator.rank())] = number;
  return sum_over_ranks(communicator, std::move(mine));
}

}  // namespace gossamer
