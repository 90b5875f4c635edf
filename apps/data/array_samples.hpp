#pragma once
// Samples that are arrays in memory: images, rows of a table.

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "apps/data/dataset.hpp"

namespace gossamer::apps {

/// Immutable; any thread may read.
class ArraySamples final : public Samples {
 public:
  struct Content {
    /// The numbers of all samples, one sample after the other. Bytes are pixels from 0
    /// (background) to 255; models get them as numbers from -1 to 1.
    std::variant<std::vector<std::uint8_t>, std::vector<float>> values;
    /// One class per sample, or empty.
    std::vector<std::int64_t> labels = {};
    /// num_outputs numbers per sample where there are no labels.
    std::vector<float> numbers = {};
  };

  /// Throws std::logic_error if the sizes do not fit together.
  ArraySamples(const SampleShape& shape, std::int64_t size, Content content);

  [[nodiscard]] std::span<const std::int64_t> labels() const override { return content_.labels; }
  [[nodiscard]] float background() const override;
  void copy_array(std::int64_t index, std::span<float> out) const override;
  void copy_numbers(std::int64_t index, std::span<float> out) const override;

  /// The pixels of all samples; empty if the values are numbers.
  [[nodiscard]] std::span<const std::uint8_t> pixels() const;

 private:
  Content content_;
};

}  // namespace gossamer::apps
