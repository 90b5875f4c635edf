#pragma once
// Models, initial values and data that any framework can reproduce. Everything follows from a seed
// by arithmetic on 64-bit integers, so two programs that train the same model must print the same
// losses. scripts/lab/peer_step.py is the counterpart for PyTorch and decent-dp.
//
// mix(z) is one step of splitmix64 from state z (Steele, Lea and Flood, "Fast Splittable
// Pseudorandom Number Generators", OOPSLA 2014). Three functions build on it:
//
//   h(seed, stream, i) = mix(mix(seed * 2^32 + stream) + i)
//   u(seed, stream, i) = (h >> 40) / 2^24
//   sym(b)             = float32(b * (2 u - 1))
//
// So u is a fraction in [0, 1) made of the 24 leading bits of h. sym() computes in double and
// rounds at the end.
//
// Element i (row-major) of parameter t (declared order) comes from stream 1 + t. The inputs of rank
// r come from stream 1000 + r, its labels from 2000 + r, and the pattern of class c from 900 + c.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/models/models.hpp"

namespace gossamer::apps {

/// One of the models, with its initial values and data.
class ReferenceTask {
 public:
  /// `mlp` (784-1024-1024-1024-10), `resnet20` (3 x 32 x 32 images) or `gpt` (6 layers, 384 wide,
  /// 128 tokens). Throws ConfigError for another name.
  explicit ReferenceTask(std::string_view model, std::uint64_t seed);

  /// `mlp`, `resnet20`, `gpt`.
  static std::vector<std::string> model_names();

  /// A new model with the initial values.
  [[nodiscard]] std::shared_ptr<Model> make_model() const;
  /// A pool of batches of this rank; the steps use them in turn.
  [[nodiscard]] std::vector<Batch> make_batches(int rank, std::int64_t batch_size) const;
  [[nodiscard]] std::int64_t default_batch_size() const;

 private:
  [[nodiscard]] Batch image_batch(int rank, std::int64_t first, std::int64_t count) const;
  [[nodiscard]] Batch token_batch(int rank, std::int64_t first, std::int64_t count) const;

  std::string name_;
  std::uint64_t seed_;
  SampleShape shape_;
  std::string options_;
};

}  // namespace gossamer::apps
