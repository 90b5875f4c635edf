#pragma once
// LibTorch batches of samples, on the host. The functions keep no state; any thread may call.
// Errors: DataError.

#include <cstdint>
#include <span>

#include <torch/types.h>

#include "apps/data/dataset.hpp"
#include "apps/models/models.hpp"
#include "base/random.hpp"

namespace gossamer::apps {

/// The samples with these indices.
Batch make_batch(const Samples& samples, std::span<const std::int64_t> indices);

/// Changes of images that leave their classes as they are.
struct Augmentation {
  /// Every image moves by up to so many pixels in both directions. Places that it leaves become
  /// background.
  std::int64_t crop = 0;
  /// Every second image, by chance, is mirrored left to right.
  bool flip = false;

  [[nodiscard]] bool enabled() const { return crop > 0 || flip; }
};

/// Changes the images of a batch, [count, channels, height, width], whose samples have this
/// background.
void augment(torch::Tensor& images, const Augmentation& augmentation, float background,
             Random& random);

}  // namespace gossamer::apps
