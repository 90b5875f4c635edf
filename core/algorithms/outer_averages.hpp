#pragma once
// The averages of models that `outer` takes: over all ranks, or over the ranks that meet in a round
// of a topology.
//
// Under a codec, ranks that meet in a topology exchange encoded models (optim/codec.hpp keeps their
// mean). All ranks together send what their models have moved since the last average. The anchor a
// is the same on all ranks, so they know the mean model from the mean move:
//
//   d = x - a + e        mean x := a + (sum of R(d)) / n        e' = what the sum lacks of d
//
// The error e stays on the rank, and travels with the next average (error feedback). So a codec may
// leave out most of d, and nothing is lost: the mean of a + d over the ranks is the mean of the new
// models and errors. SparseLoCo sends the largest elements of d like this (Sarfi et al.,
// "Communication Efficient LLM Pre-training with SparseLoCo", 2025), and DoubleSqueeze keeps the
// error of a sum on the rank that has encoded it (Tang et al., ICML 2019).
//
// Protocol for a bucket: start(), wait(), take() or drop(), and so on.
//
// Errors: CommError from lanes. Not thread safe.

#include <cstdint>

#include "core/algorithm.hpp"
#include "core/bucket_lanes.hpp"

namespace gossamer {

class OuterAverages {
 public:
  /// Collective.
  OuterAverages(const AlgorithmSetup& setup, bool follows_topology);

  /// Starts an average of the ranks' `models`. The number of the topology's round, or of the step.
  /// No code may write `models` before take(), or after loading `anchor`.
  void start(const Bucket& bucket, std::int64_t round, const Buffer& models, const Block& anchor);
  void wait(const Bucket& bucket) { lanes_[bucket].wait(); }
  /// model <- the average. `model` is what this rank has sent.
  void take(const Bucket& bucket, const Block& model, const Block& anchor);
  /// In place of take(): leaves the model as it is.
  void drop(const Bucket& bucket) { static_cast<void>(lanes_[bucket].take()); }
  /// Drops the errors, because other code has written the models.
  void forget();
  /// The errors. A run may go on with another codec, or without.
  void visit(StateVisitor& visitor);

 private:
  /// Of a rank that sends encoded moves.
  struct Moves {
    Buffer sent;
    Buffer error;
  };

  AlgorithmSetup setup_;
  bool sends_moves_;
  BucketLanes lanes_;
  /// Empty, unless sends_moves_.
  PerBucket<Moves> moves_;
};

}  // namespace gossamer
