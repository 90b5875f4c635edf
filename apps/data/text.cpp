// The data set `text`: the bytes of a file, cut into windows.

#include "base/text.hpp"

#include <filesystem>
#include <fstream>

#include "apps/data/dataset.hpp"
#include "base/error.hpp"

namespace gossamer::apps {

std::unique_ptr<const DatasetEntry::Loader> configure_text(const Options& data);

namespace {

constexpr std::int64_t kNumBytes = 256;

class Text : public DatasetEntry::Loader {
 public:
  explicit Text(const Options& data)
      : path_(data.text("path", std::nullopt)),
        context_(data.integer("context", {.fallback = 128, .min = 1, .max = 65'536})),
        train_range_(data.range("train_range")),
        val_range_(data.range("val_range")) {
    if (path_.empty()) data.fail("path", "is empty, allowed: the path of a file");
  }

  [[nodiscard]] Dataset load(std::uint64_t /*seed*/) const override {
    std::ifstream file(path_, std::ios::binary);
    std::error_code error;
    const std::uintmax_t found = std::filesystem::file_size(path_, error);
    if (!file || error) throw DataError(concat(path_, ": cannot be opened as a file"));
    const auto size = static_cast<std::int64_t>(found);
    const std::int64_t split = size * 9 / 10;
    const auto train = train_range_.value_or(std::pair(std::int64_t{0}, split));
    const auto validation = val_range_.value_or(std::pair(split, size));
    if (train.first < validation.second && validation.first < train.second) {
      throw DataError(concat(path_, ": train_range [", train.first, ", ", train.second,
                             ") and val_range [", validation.first, ", ", validation.second,
                             ") overlap; training and validation must not share text: choose "
                             "ranges without common bytes"));
    }
    return {.train = read(file, size, "train_range", train),
            .validation = read(file, size, "val_range", validation)};
  }

 private:
  using Range = std::pair<std::int64_t, std::int64_t>;

  Samples read(std::ifstream& file, std::int64_t size, std::string_view key, Range range) const {
    const std::int64_t bytes = range.second - range.first;
    if (range.second > size) {
      throw DataError(concat(path_, ": has ", size, " bytes, but ", key, " [", range.first, ", ",
                             range.second, ") reaches beyond them"));
    }
    const std::int64_t windows = (bytes - 1) / context_;
    if (windows < 1) {
      throw DataError(concat(path_, ": ", key, " has ", bytes, " bytes, a window needs ",
                             context_ + 1, " (data.context and the byte that follows)"));
    }
    Samples samples{.kind = SampleKind::kTokens,
                    .size = windows,
                    .height = 1,
                    .width = context_,
                    .num_classes = kNumBytes,
                    .values = {},
                    .labels = {}};
    samples.values.resize(static_cast<std::size_t>(windows * context_ + 1));
    file.seekg(range.first);
    if (!file.read(reinterpret_cast<char*>(samples.values.data()), std::ssize(samples.values))) {
      throw DataError(concat(path_, ": byte ", range.first, ": cannot be read"));
    }
    return samples;
  }

  std::string path_;
  std::int64_t context_;
  std::optional<Range> train_range_;
  std::optional<Range> val_range_;
};

}  // namespace

std::unique_ptr<const DatasetEntry::Loader> configure_text(const Options& data) {
  return std::make_unique<const Text>(data);
}

}  // namespace gossamer::apps
