#pragma once
// The averages of models that `outer` takes: over all ranks, or over the ranks that meet in a round
// of a topology.
//
// Under a codec, ranks that meet in a topology exchange encoded models (optim/codec.hpp keeps their
// mean). All ranks together send their moves: what their models have moved since the last average.
// The anchor a is the same on all ranks, so they know the mean model from the mean move:
//
//   d = x - a + b e      mean x := a + (sum of R(d)) / n        e' = what the sum lacks of d
//
// The error e stays on the rank, and travels with the next average (error feedback). So a codec may
// leave out most of d. With b = 1 nothing is lost: the mean of a + d over the ranks is the mean of
// the new models and errors. SparseLoCo sends the largest elements of d in this way, and its errors
// decay, with b about 0.95 (Sarfi et al., "Communication Efficient LLM Pre-training with
// SparseLoCo", 2025). In DoubleSqueeze, too, the rank that has encoded a sum keeps the error of the
// sum (Tang et al., ICML 2019).
//
// After forget() (other code has written the parameters) a rank's anchor differs from the others':
//
//   1. The rank sets a flag in its next message.
//   2. All ranks see the flag, and discard that average.
//   3. For the next average all ranks send their whole models. The mean becomes model and anchor,
//      and momentum and errors are 0 again.
//
// Protocol for a bucket: start(), wait(), take() or drop(), and so on.
//
// Errors: CommError from lanes. Not thread safe.

#include <cstdint>

#include "base/stream.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/algorithms/bucket_lanes.hpp"

namespace gossamer {

class OuterAverages {
 public:
  struct Config {
    bool follows_topology = false;
    /// Steps between two averages of a bucket.
    std::int64_t every = 1;
    /// b above, 0 to 1.
    double error_decay = 1.0;
  };
  /// Collective.
  OuterAverages(const AlgorithmSetup& setup, const Config& config);

  /// Starts an average of the ranks' `models` after a step. `number` counts the bucket's averages.
  /// Until take(), no code may write `models` or `anchor`.
  void start(const Bucket& bucket, std::int64_t step, std::int64_t number, const Buffer& models,
             const Block& anchor);
  void wait(const Bucket& bucket) { lane_of(bucket).wait(); }

  enum class Taken : std::uint8_t {
    /// The average has no use, and the model stays.
    kNothing,
    kAverage,
    /// The average of models after parameters were written: it is the anchor as well.
    kNewAnchor,
  };
  /// Computes model <- the average that has arrived. `model` is the model that this rank has sent,
  /// and `step` is the present step.
  Taken take(const Bucket& bucket, std::int64_t step, const Block& model, const Block& anchor);
  /// Takes the place of take(), and leaves the model as it is.
  void drop(const Bucket& bucket, std::int64_t step);
  /// Drops the errors, because other code has written the parameters before this step.
  void forget(std::int64_t step);
  /// Notes that from this step on this rank's anchors may differ from the anchors of the other
  /// ranks.
  void distrust(std::int64_t step);
  /// A run may go on with another codec, or without.
  void visit(StateVisitor& visitor);

 private:
  /// The state of a bucket whose ranks send encoded moves.
  struct Moves {
    /// The move, and behind it flag_of() its average.
    Buffer sent;
    Buffer error;
    /// Host memory: the flags that a rank may send, and the sum that has arrived.
    Buffer flags;
    /// The step after which the last average has begun, and whether it is one of moves.
    std::int64_t began = -1;
    bool are_sent = false;
  };
  [[nodiscard]] Lane& lane_of(const Bucket& bucket);
  /// The flag of an average of moves that began after step `began`. It is 1 if this rank's anchor
  /// may differ from the others', or if all ranks have agreed on averages of models since. After
  /// loading, an average may be repeated that has begun before the rank's parameters were written:
  /// kUnusable.
  [[nodiscard]] double flag_of(std::int64_t began) const;
  void send_move(const Bucket& bucket, const Block& model, const Block& anchor);
  /// Whether all ranks have sent moves from the same anchor. If not, all ranks agree on averages of
  /// models from the next step on.
  bool have_one_anchor(const Bucket& bucket, std::int64_t step, const ConstBlock& sum);

  AlgorithmSetup setup_;
  Config config_;
  bool sends_moves_;
  BucketLanes lanes_;
  /// The lanes of whole models. Used only with sends_moves_.
  BucketLanes model_lanes_;
  /// The moves of each bucket; empty unless sends_moves_.
  PerBucket<Moves> moves_;
  /// Averages that begin in the `every` steps from here on are of models. The same on all ranks.
  std::int64_t models_from_;
  /// The step before which other code has written this rank's parameters; of several such steps,
  /// the first one without a later agreement of the ranks. At most models_from_: the ranks have
  /// agreed since.
  std::int64_t written_;
};

}  // namespace gossamer
