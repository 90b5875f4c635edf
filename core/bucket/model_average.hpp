#pragma once
// Averages the models of all ranks, and measures how far each rank is from the average. Makes
// numbers equal on all ranks. Not thread safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.hpp"
#include "base/state_visitor.hpp"
#include "comm/communicator.hpp"
#include "core/bucket/parameter_memory.hpp"

namespace gossamer {

/// Replaces the parameters of all ranks by their mean, and remembers each rank's own values.
/// Rounded copies follow. No exchange of the parameters may be in flight. Needs memory for one more
/// copy of the parameters.
class ModelAverage {
 public:
  /// Collective: all ranks pass blocks of the same sizes, float32 or float64, on the device of
  /// `stream`. Waits for the stream. `stream` must outlive this object. `weight` is this rank's
  /// weight in the mean; the weights of all ranks sum to their number. The values of a rank with
  /// weight 0 do not matter, even if they are not finite. Throws CommError. After a PeerLost the
  /// parameters are as before.
  ModelAverage(Communicator& communicator, Stream& stream, std::vector<ParameterMemory> memory,
               double weight = 1.0);

  /// |mean - x||, the L2 norm over all parameters, where x are this rank's own values.
  [[nodiscard]] double distance() const { return distance_; }
  /// Writes this rank's own values back, bit for bit, as work on the stream. Does not communicate.
  void restore();

 private:
  /// Restores the first blocks.
  void restore(std::size_t num_blocks);
  /// Enqueues the rounding of the parameters into the rounded copies.
  void write_rounded();

  Stream& stream_;
  std::vector<ParameterMemory> memory_;
  std::vector<Buffer> saved_;
  double distance_ = 0.0;
};

/// Makes numbers equal on all ranks: reals become their mean, integers the largest one. Collective:
/// visits that save first, on every rank the same, then share(), then the same visits again, which
/// load. Blocks are not allowed.
class SharedNumbers : public StateVisitor {
 public:
  [[nodiscard]] bool loads() const override { return is_shared_; }
  [[nodiscard]] bool holds(const std::string& /*name*/) const override { return true; }
  void block(const std::string& name, const Block& block) override;
  void number(const std::string& name, double& value) override;
  void number(const std::string& name, std::int64_t& value) override;
  /// `weight`: as in ModelAverage. With weight 0 none of this rank's numbers counts, of which the
  /// integers are not negative.
  void share(Communicator& communicator, double weight = 1.0);

 private:
  bool is_shared_ = false;
  std::vector<double> numbers_;
  std::vector<bool> is_integer_;
  std::size_t next_ = 0;
};

/// A rank's part in a mean over some of the ranks.
struct MeanWeight {
  /// The weight of this rank in the mean, as ModelAverage takes it.
  double weight = 1.0;
  /// How many ranks count.
  int num_counting = 0;
};

/// Collective: the weight of a rank that counts in a mean of models, or does not. All that count
/// weigh alike. Throws CommError if no rank counts.
MeanWeight mean_weight(Communicator& communicator, bool counts);

/// Collective: the sum over all ranks of each number, added in rank order.
std::vector<double> sum_over_ranks(Communicator& communicator, std::vector<double> numbers);
/// Collective: the numbers of all ranks, in rank order.
std::vector<double> gather_numbers(Communicator& communicator, double number);

}  // namespace gossamer
