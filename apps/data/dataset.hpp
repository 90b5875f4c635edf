#pragma once
// Samples in memory, and the table of the data sets that can be had. Nothing here knows
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

#include "base/options.hpp"
#include "base/registry.hpp"

namespace gossamer::apps {

enum class SampleKind : std::uint8_t { kImages, kTokens };

/// `images`, `text`: for messages.
constexpr std::string_view name_of(SampleKind kind) {
  return kind == SampleKind::kImages ? "images" : "text";
}

/// `size` samples. Immutable once built; ranks of one process share it.
///
/// Images: grey, with one label each. Tokens: windows of a text; what is to be told at every place
/// is the token that follows.
struct Samples {
  SampleKind kind = SampleKind::kImages;
  std::int64_t size = 0;
  /// Pixels. Tokens: height 1, and the width is the length of a window.
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t num_classes = 0;
  /// Images: [size, height, width], 0 = background, 255 = ink. Tokens: size * width + 1; window i
  /// begins at i * width.
  std::vector<std::uint8_t> values;
  /// Images: [size], each in 0 .. num_classes-1. Tokens: empty.
  std::vector<std::int64_t> labels;

  /// Image or window `index`, in 0 .. size-1; a window has one more token than its width.
  [[nodiscard]] std::span<const std::uint8_t> sample(std::int64_t index) const {
    const auto stride = static_cast<std::size_t>(height * width);
    const std::size_t count = stride + (kind == SampleKind::kTokens ? 1 : 0);
    return std::span(values).subspan(static_cast<std::size_t>(index) * stride, count);
  }
};

struct Dataset {
  Samples train;
  Samples validation;
};

struct DatasetEntry {
  std::string_view name;
  std::string_view summary;
  /// The keys that `configure` reads.
  std::span<const OptionEntry> options;
  /// Reads its own keys of the `data` section when the configuration is checked, so that nothing
  /// touches a file before; returns what loads the data. Loading throws DataError.
  struct Loader {
    virtual ~Loader() = default;
    /// The same data for the same configuration and seed; data sets from files ignore the seed.
    [[nodiscard]] virtual Dataset load(std::uint64_t seed) const = 0;
  };
  std::unique_ptr<const Loader> (*configure)(const Options& data);
  SampleKind gives = SampleKind::kImages;
};

std::span<const DatasetEntry> dataset_table();
std::vector<std::string> dataset_names();
const DatasetEntry& find_dataset(const std::string& name);
/// The loader of a data set by name (either spelling). Throws ConfigError when the name is unknown,
/// or a key is wrong.
std::unique_ptr<const DatasetEntry::Loader> configure_dataset(const std::string& name,
                                                              const Options& data);

}  // namespace gossamer::apps
