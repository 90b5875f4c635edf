#pragma once
// The noise of gradients: how much longer the gradient of one rank is than the mean of all ranks'
// gradients. A recipe for all-reduce counts on the mean. An optimizer of the Adam family that gets
// the gradient of one rank divides by a longer one, and makes shorter steps; a norm of the recipe
// clips more of it.
//
// The two squared lengths are the expectations for a small batch and a large one in McCandlish et
// al., "An Empirical Model of Large-Batch Training" (2018), appendix A.1.
//
// - `own` is the squared norm of a rank's gradient, as a mean over the ranks.
// - `mean` is the squared norm of the mean gradient.
// - `ratio` is the root of own / mean. It is 1 where all ranks have the same gradient. It is the
//   root of the number of ranks where gradients are noise alone.
//
// Example with three ranks whose gradients are (1, 1), (1, -1) and (1, 0): own = 5/3, mean = 1, and
// the ratio is 1.29.
//
// A sample is enough: about one element of 256, at least 1,024 and at most 16,384, in runs of 64.
// The runs lie elsewhere in each sample, at the same places on all ranks. The ranks sum a sample
// of every tenth step. The sum travels beside the exchanges of the steps, and the ninth step after
// it takes the result, so that no step waits for it. Averages of the last samples give the ratio.
//
// Protocol: in a step of is_due(), call add() for the gradients that there are, in any order, then
// start() on all ranks. In a step of takes_result(), call finish() at its end. Before visit() call
// drain(), and after a PeerLost call drop().
//
// Streams: gradients lie in the stream's memory, and are copied to the host as work on the stream.
// Not thread safe. Errors: CommError from start(), finish() and drain().

#include <cstdint>
#include <memory>
#include <vector>

#include "base/state_visitor.hpp"
#include "base/stream.hpp"
#include "base/types.hpp"
#include "comm/communicator.hpp"

namespace gossamer {

class GradientNoise {
 public:
  /// Steps between two samples.
  static constexpr std::int64_t kEvery = 10;
  /// Elements of a run of neighbours.
  static constexpr std::int64_t kRunNumel = 64;

  /// `numels`: the elements of each parameter, by declared index. `stream` must outlive this
  /// object, and its work must be done when this object goes.
  GradientNoise(Stream& stream, std::vector<std::int64_t> numels);

  /// Whether step `step`, counted from 0, gives a sample.
  static bool is_due(std::int64_t step) { return step % kEvery == 0; }
  /// Whether the end of step `step` takes the result of the last sample.
  static bool takes_result(std::int64_t step) { return step % kEvery == kEvery - 1; }

  /// Begins the sample of a step. Replaces a sample that was not started.
  void begin(std::int64_t step);
  /// Copies what the sample has of the gradient of a parameter, a declared index. The gradient's
  /// memory must stay until the stream's work is done.
  void add(std::int64_t parameter, const ConstBlock& gradient);
  /// Collective. Starts the sum of the sample over the ranks.
  void start(Communicator& communicator);
  /// Waits for the last sum, and adds its result to the averages. Does nothing if there is no sum,
  /// or if a gradient was not finite.
  void finish();
  /// Waits for the sum under way, and keeps its result for finish().
  void drain();
  /// Forgets the sum under way.
  void drop();

  /// The factor by which steps of an optimizer are too short that divides by the root mean square
  /// of means over `num_accumulated` >= 1 of a rank's gradients: ratio() for 1. 1 before the first
  /// result.
  [[nodiscard]] double ratio(std::int64_t num_accumulated = 1) const;

  /// Shows the visitor the averages, and the result that finish() has not taken. Call it after
  /// drain().
  void visit(StateVisitor& visitor);

 private:
  struct Sample;
  /// The squared lengths of a sample, or their averages.
  struct Lengths {
    double own = 0.0;
    double mean = 0.0;
    /// The number of ranks; 0: there is no sample.
    std::int64_t num_ranks = 0;
  };
  Stream& stream_;
  std::vector<std::int64_t> numels_;
  /// The elements of all parameters.
  std::int64_t numel_;
  std::int64_t num_runs_ = 0;
  /// The sample that begin() has begun, or whose sum is under way.
  std::shared_ptr<Sample> sample_;
  Request request_;
  /// A result that finish() has not taken.
  Lengths result_;
  Lengths average_;
};

}  // namespace gossamer
