// The data set `idx`: images and labels in the files of MNIST and its relatives.

#include <algorithm>
#include <array>
#include <filesystem>

#include "apps/data/array_samples.hpp"
#include "apps/data/data_options.hpp"
#include "apps/data/dataset.hpp"
#include "apps/data/idx_file.hpp"
#include "apps/data/idx_files.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

std::unique_ptr<const DatasetEntry::Loader> configure_idx(const Options& data);

namespace {

/// Images [first, last) of a file, and the configuration key that sets this range.
struct Range {
  std::string_view key;
  std::int64_t first = 0;
  std::int64_t last = 0;
};

std::string to_string(const Range& range) {
  return concat(range.key, " [", range.first, ", ", range.last, ")");
}

/// An images file with a checked header, and all labels in memory.
struct OpenPair {
  IdxFile images;
  std::vector<std::uint8_t> labels;

  [[nodiscard]] std::int64_t size() const { return images.items(); }
  [[nodiscard]] std::int64_t num_classes() const { return *std::ranges::max_element(labels) + 1; }
};

/// Reads the labels first, because they are small. Once the number of labels in the header has
/// proved true, the images file must have the same number.
OpenPair open_pair(const IdxPair& pair) {
  IdxFile labels_file(pair.labels, 1);
  std::vector<std::uint8_t> labels;
  labels_file.append(labels_file.items(), labels);
  labels_file.finish();
  IdxFile images(pair.images, 3);
  if (images.items() != labels_file.items()) {
    throw DataError(concat(pair.images.string(), ": byte 4: holds ", images.items(),
                           " images, but ", pair.labels.string(), " holds ", labels.size(),
                           " labels; the two files do not belong together"));
  }
  return {.images = std::move(images), .labels = std::move(labels)};
}

void check_range(const OpenPair& pair, const Range& range) {
  if (range.last <= pair.size()) return;
  throw DataError(concat(pair.images.path().string(), ": holds ", pair.size(), " images, but ",
                         to_string(range), " reaches beyond them; choose a range within [0, ",
                         pair.size(), ")"));
}

using Images = std::shared_ptr<const Samples>;

/// Reads the images of the ranges, which must be disjoint and in the order of the file. Checks the
/// rest of the file without keeping it. A model has `num_classes` outputs.
std::vector<Images> read_ranges(OpenPair& pair, std::span<const Range> ranges,
                                std::int64_t num_classes) {
  std::vector<Images> result;
  std::int64_t position = 0;
  for (const Range& range : ranges) {
    const std::int64_t size = range.last - range.first;
    std::vector<std::uint8_t> pixels;
    pair.images.skip(range.first - position);
    pair.images.append(size, pixels);
    pixels.shrink_to_fit();
    result.push_back(std::make_shared<const ArraySamples>(
        SampleShape{.height = pair.images.shape()[1],
                    .width = pair.images.shape()[2],
                    .num_outputs = num_classes},
        size,
        ArraySamples::Content{
            .values = std::move(pixels),
            .labels = {pair.labels.begin() + range.first, pair.labels.begin() + range.last}}));
    position = range.last;
  }
  pair.images.skip(pair.size() - position);
  pair.images.finish();
  return result;
}

class Idx : public DatasetEntry::Loader {
 public:
  explicit Idx(const Options& data)
      : path_(data.read(idx::kPath)),
        train_range_(data.read(idx::kTrainRange)),
        val_range_(data.read(idx::kValRange)) {
    if (path_.empty()) {
      data.fail("path",
                "is empty, allowed: a folder with IDX files, or the path of an images file");
    }
  }

  [[nodiscard]] Dataset load(std::uint64_t /*seed*/) const override {
    const IdxFiles files = find_idx_files(path_);
    return files.validation ? load_two(files.train, *files.validation) : load_one(files.train);
  }

 private:
  using GivenRange = std::optional<std::pair<std::int64_t, std::int64_t>>;

  [[nodiscard]] Range train_range(std::int64_t first, std::int64_t last) const {
    const auto range = train_range_.value_or(std::pair(first, last));
    return {.key = "train_range", .first = range.first, .last = range.second};
  }
  [[nodiscard]] Range val_range(std::int64_t first, std::int64_t last) const {
    const auto range = val_range_.value_or(std::pair(first, last));
    return {.key = "val_range", .first = range.first, .last = range.second};
  }

  [[nodiscard]] Dataset load_two(const IdxPair& train_files, const IdxPair& val_files) const {
    OpenPair train = open_pair(train_files);
    OpenPair validation = open_pair(val_files);
    if (!std::ranges::equal(train.images.shape().last(2), validation.images.shape().last(2))) {
      throw DataError(concat(val_files.images.string(), ": byte 8: images of ",
                             join(validation.images.shape().last(2), " x "), " pixels, but ",
                             train_files.images.string(), " holds images of ",
                             join(train.images.shape().last(2), " x "),
                             "; the two files do not belong together"));
    }
    const std::array train_part = {train_range(0, train.size())};
    const std::array val_part = {val_range(0, validation.size())};
    check_range(train, train_part[0]);
    check_range(validation, val_part[0]);
    // A model must have an output for every label of both files.
    const std::int64_t classes = std::max(train.num_classes(), validation.num_classes());
    return {.train = read_ranges(train, train_part, classes)[0],
            .validation = read_ranges(validation, val_part, classes)[0]};
  }

  [[nodiscard]] Dataset load_one(const IdxPair& files) const {
    OpenPair pair = open_pair(files);
    if (pair.size() < 2) {
      throw DataError(concat(files.images.string(),
                             ": holds 1 image, which cannot be split into "
                             "training and validation"));
    }
    const std::int64_t split = pair.size() * 5 / 6;
    const Range train = train_range(0, split);
    const Range validation = val_range(split, pair.size());
    check_range(pair, train);
    check_range(pair, validation);
    if (train.first < validation.last && validation.first < train.last) {
      throw DataError(concat(files.images.string(), ": ", to_string(train), " and ",
                             to_string(validation),
                             " overlap; training and validation must not share images: give "
                             "data.train_range and data.val_range without common images"));
    }
    const bool train_first = train.first < validation.first;
    const std::array parts = {train_first ? train : validation, train_first ? validation : train};
    const std::vector<Images> images = read_ranges(pair, parts, pair.num_classes());
    return {.train = images[train_first ? 0 : 1], .validation = images[train_first ? 1 : 0]};
  }

  std::string path_;
  GivenRange train_range_;
  GivenRange val_range_;
};

}  // namespace

std::unique_ptr<const DatasetEntry::Loader> configure_idx(const Options& data) {
  return std::make_unique<const Idx>(data);
}

}  // namespace gossamer::apps
