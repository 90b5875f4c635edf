#pragma once
// What samples hold, as plain vectors.

#include <cstdint>
#include <span>
#include <vector>

#include "apps/data/array_samples.hpp"

namespace gossamer::apps {

struct ArrayView {
  explicit ArrayView(const Samples& samples)
      : size(samples.size()),
        height(samples.shape().height),
        width(samples.shape().width),
        num_outputs(samples.shape().num_outputs),
        labels(samples.labels().begin(), samples.labels().end()) {
    const auto pixels = dynamic_cast<const ArraySamples&>(samples).pixels();
    values.assign(pixels.begin(), pixels.end());
  }
  [[nodiscard]] std::span<const std::uint8_t> sample(std::int64_t index) const {
    const auto count = static_cast<std::size_t>(height * width);
    return std::span(values).subspan(static_cast<std::size_t>(index) * count, count);
  }

  std::int64_t size;
  std::int64_t height;
  std::int64_t width;
  std::int64_t num_outputs;
  std::vector<std::uint8_t> values;
  std::vector<std::int64_t> labels;
};

struct ArrayViews {
  explicit ArrayViews(const Dataset& data) : train(*data.train), validation(*data.validation) {}
  ArrayView train;
  ArrayView validation;
};

/// The tokens of a window, and the one that follows.
inline std::vector<std::int64_t> window(const Samples& samples, std::int64_t index) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(samples.shape().width + 1));
  samples.copy_tokens(index, tokens);
  return tokens;
}

}  // namespace gossamer::apps
