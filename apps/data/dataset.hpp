#pragma once
// Samples in memory, and the table of the data sets. Nothing here depends on LibTorch. To add a
// data set, write its file, declare its function in registry.cpp, and add a row there.
//
// Thread safety: one thread configures, because Options is not thread safe. Any thread may read a
// loader and loaded data.

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

/// `images` or `text`, for messages.
constexpr std::string_view name_of(SampleKind kind) {
  return kind == SampleKind::kImages ? "images" : "text";
}

/// A set of `size` samples. Immutable once built; the ranks of one process share it.
///
/// Images are grey and have one label each. Tokens are windows of a text; at every place of a
/// window the model must predict the token that follows.
struct Samples {
  SampleKind kind = SampleKind::kImages;
  std::int64_t size = 0;
  /// Images: pixels. Tokens: the height is 1, and the width is the number of tokens in a window.
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t num_classes = 0;
  /// Images: [size, height, width], 0 = background, 255 = ink. Tokens: size * width + 1; window i
  /// begins at i * width.
  std::vector<std::uint8_t> values;
  /// Images: [size], each in 0 .. num_classes-1. Tokens: empty.
  std::vector<std::int64_t> labels;

  /// Image or window `index`, in 0 .. size-1. A window has one token more than its width, because
  /// the last place also needs the token that follows.
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
  /// The loader of a configured data set. configure() reads the keys of the `data` section when the
  /// configuration is checked; only load() touches files. load() throws DataError.
  struct Loader {
    virtual ~Loader() = default;
    /// Returns the same data for the same configuration and seed. Data sets from files ignore the
    /// seed.
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
