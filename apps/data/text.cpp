// The data set `text`: the bytes of a file, cut into windows.

#include "base/text.hpp"

#include <optional>

#include "apps/data/data_options.hpp"
#include "apps/data/dataset.hpp"
#include "apps/data/token_samples.hpp"
#include "base/error.hpp"

namespace gossamer::apps {

std::unique_ptr<const DatasetEntry::Loader> configure_text(const Options& data);

namespace {

constexpr std::int64_t kNumBytes = 256;

class Text : public DatasetEntry::Loader {
 public:
  explicit Text(const Options& data)
      : path_(data.read(text::kPath)),
        context_(data.read(text::kContext)),
        train_range_(data.read(text::kTrainRange)),
        val_range_(data.read(text::kValRange)) {
    if (path_.empty()) data.fail("path", "is empty, allowed: the path of a file");
  }

  [[nodiscard]] Dataset load(std::uint64_t /*seed*/) const override {
    const auto file = std::make_shared<const MappedFile>(path_);
    const auto size = std::ssize(file->bytes());
    const std::int64_t split = size * 9 / 10;
    const auto train = train_range_.value_or(std::pair(std::int64_t{0}, split));
    const auto validation = val_range_.value_or(std::pair(split, size));
    if (train.first < validation.second && validation.first < train.second) {
      throw DataError(concat(path_, ": train_range [", train.first, ", ", train.second,
                             ") and val_range [", validation.first, ", ", validation.second,
                             ") overlap; training and validation must not share text: choose "
                             "ranges without common bytes"));
    }
    return {.train = windows(file, "train_range", train),
            .validation = windows(file, "val_range", validation)};
  }

 private:
  using Range = std::pair<std::int64_t, std::int64_t>;

  [[nodiscard]] std::shared_ptr<const Samples> windows(
      const std::shared_ptr<const MappedFile>& file, std::string_view key, Range range) const {
    if (range.second > std::ssize(file->bytes())) {
      throw DataError(concat(path_, ": has ", file->bytes().size(), " bytes, but ", key, " [",
                             range.first, ", ", range.second, ") reaches beyond them"));
    }
    return std::make_shared<const TokenSamples>(
        context_, kNumBytes,
        std::vector{TokenRun{
            .file = file, .begin = range.first, .num_tokens = range.second - range.first}});
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
