#pragma once
// The average of all ranks' models, and how far apart they are.

#include <span>
#include <vector>

#include "base/buffer.hpp"
#include "comm/communicator.hpp"
#include "core/parameter_memory.hpp"

namespace gossamer {

/// Replaces parameters by their mean over all ranks and remembers what they were; rounded copies
/// follow. Nothing may be in flight on them. Costs one copy of them.
class ModelAverage {
 public:
  /// Collective: all ranks give blocks of the same sizes; float32 or float64, on the device of
  /// `stream`, which outlives this. Throws CommError.
  ModelAverage(Communicator& communicator, Stream& stream, std::vector<ParameterMemory> memory);

  /// ||mean - x|| over all parameters, x this rank's own values.
  [[nodiscard]] double distance() const { return distance_; }
  /// Writes this rank's own values back, bit for bit, as work on the stream. Does not communicate.
  void restore();

 private:
  /// Makes the rounded copies what the parameters are.
  void write_rounded();

  Stream& stream_;
  std::vector<ParameterMemory> memory_;
  std::vector<Buffer> saved_;
  double distance_ = 0.0;
};

/// Collective: the sum over all ranks of each number, in rank order.
std::vector<double> sum_over_ranks(Communicator& communicator, std::vector<double> numbers);
/// Collective: every rank's number.
std::vector<double> gather_numbers(Communicator& communicator, double number);

}  // namespace gossamer
