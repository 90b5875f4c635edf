#pragma once
// Labelled images in memory, and the table of the data sets that can be had. Nothing here knows
// LibTorch. Adding a data set: write its file, declare its function in registry.cpp, add a row
// there. Configuring is for one thread (Options is); a loader and loaded data are safe to read from
// any.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gossamer/core/base/options.hpp"

namespace gossamer::apps {

/// `size` grey images with one label each. Immutable once built; ranks of one process share it.
struct LabelledImages {
  std::int64_t size = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t num_classes = 0;
  /// [size, height, width], 0 = background, 255 = ink.
  std::vector<std::uint8_t> pixels;
  /// [size], each in 0 .. num_classes-1.
  std::vector<std::int64_t> labels;

  [[nodiscard]] std::int64_t pixels_per_image() const { return height * width; }
  /// [height, width] of image `index`, which must be in 0 .. size-1.
  [[nodiscard]] std::span<const std::uint8_t> image(std::int64_t index) const {
    const auto count = static_cast<std::size_t>(pixels_per_image());
    return std::span(pixels).subspan(static_cast<std::size_t>(index) * count, count);
  }
};

struct Dataset {
  LabelledImages train;
  LabelledImages validation;
};

struct DatasetEntry {
  std::string_view name;
  std::string_view summary;
  /// Reads its own keys of the `data` section when the configuration is checked, so that nothing
  /// touches a file before; returns what loads the data. Loading throws DataError.
  struct Loader {
    virtual ~Loader() = default;
    /// The same data for the same configuration and seed; data sets from files ignore the seed.
    [[nodiscard]] virtual Dataset load(std::uint64_t seed) const = 0;
  };
  std::unique_ptr<const Loader> (*configure)(const Options& data);
};

std::span<const DatasetEntry> dataset_table();
std::vector<std::string> dataset_names();
/// The loader of a data set by name (either spelling). Throws ConfigError when the name is unknown,
/// or a key is wrong.
std::unique_ptr<const DatasetEntry::Loader> configure_dataset(const std::string& name,
                                                              const Options& data);

}  // namespace gossamer::apps
