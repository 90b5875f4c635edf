#pragma once
// Samples, and the table of the data sets. Nothing here depends on LibTorch. To add a data set,
// write its file, declare its function in registry.cpp, and add a row there.
//
// Thread safety: one thread configures, because Options is not thread safe. Any thread may read a
// loader and loaded data.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.hpp"
#include "base/registry.hpp"

namespace gossamer::apps {

enum class SampleKind : std::uint8_t { kArrays, kTokens };

/// `arrays` or `tokens`, for messages.
constexpr std::string_view name_of(SampleKind kind) {
  return kind == SampleKind::kArrays ? "arrays" : "tokens";
}

/// The right answers of the samples: one class each, or numbers.
enum class TargetKind : std::uint8_t { kClasses, kNumbers };

/// `classes` or `numbers`, for messages.
constexpr std::string_view name_of(TargetKind kind) {
  return kind == TargetKind::kClasses ? "classes" : "numbers";
}

/// The shape of one sample. Images: pixels. A row of a table: channels and height are 1. Tokens:
/// the height is 1, and the width is the number of tokens in a window.
struct SampleShape {
  std::int64_t height = 0;
  std::int64_t width = 0;
  /// The number of classes (tokens: of different tokens), or of numbers that are to be predicted.
  std::int64_t num_outputs = 0;
  std::int64_t channels = 1;

  [[nodiscard]] std::int64_t numel() const { return channels * height * width; }
  friend bool operator==(const SampleShape&, const SampleShape&) = default;
};

/// A set of samples never changes, and the ranks of one process share it. Samples are arrays of
/// numbers (images, rows of a table), each with a class or with numbers as its target. Or they are
/// windows of a text, where at every place the model must predict the token that follows.
///
/// Every way to keep samples has a class of its own: ArraySamples in memory, TokenSamples in mapped
/// files. The functions that copy may read files. They throw DataError for a file that turns out to
/// be wrong, and std::logic_error for the other kind of sample.
class Samples {
 public:
  virtual ~Samples() = default;
  Samples(const Samples&) = delete;
  Samples& operator=(const Samples&) = delete;

  [[nodiscard]] SampleKind kind() const { return kind_; }
  [[nodiscard]] TargetKind target() const { return target_; }
  [[nodiscard]] const SampleShape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t size() const { return size_; }

  /// The class of every sample, in 0 .. num_outputs-1; empty for tokens and for numbers.
  [[nodiscard]] virtual std::span<const std::int64_t> labels() const { return {}; }
  /// Arrays: the number that an empty place of an image has: a black pixel; 0 where the samples are
  /// numbers.
  [[nodiscard]] virtual float background() const { return 0.0F; }
  /// Arrays: writes the shape().numel() numbers of sample `index`.
  virtual void copy_array(std::int64_t index, std::span<float> out) const;
  /// Arrays with numbers as targets: writes the num_outputs numbers of sample `index`.
  virtual void copy_numbers(std::int64_t index, std::span<float> out) const;
  /// Tokens: writes width + 1 tokens, because the last place also needs the token that follows.
  virtual void copy_tokens(std::int64_t index, std::span<std::int64_t> out) const;

 protected:
  Samples(SampleKind kind, TargetKind target, const SampleShape& shape, std::int64_t size)
      : kind_(kind), target_(target), shape_(shape), size_(size) {}

 private:
  SampleKind kind_;
  TargetKind target_;
  SampleShape shape_;
  std::int64_t size_;
};

/// Both parts have the same shape and kind.
struct Dataset {
  std::shared_ptr<const Samples> train;
  std::shared_ptr<const Samples> validation;
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
  SampleKind gives = SampleKind::kArrays;
};

std::span<const DatasetEntry> dataset_table();
std::vector<std::string> dataset_names();
const DatasetEntry& find_dataset(const std::string& name);
/// The loader of a data set by name (either spelling). Throws ConfigError when the name is unknown,
/// or a key is wrong.
std::unique_ptr<const DatasetEntry::Loader> configure_dataset(const std::string& name,
                                                              const Options& data);

}  // namespace gossamer::apps
