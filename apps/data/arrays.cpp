// The data set `arrays`: your own arrays, as numpy's .npy files in a folder or in one safetensors
// file, under the names train_inputs, train_targets, val_inputs, val_targets.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <tuple>

#include "apps/data/array_samples.hpp"
#include "apps/data/data_options.hpp"
#include "apps/data/dataset.hpp"
#include "apps/data/npy.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer::apps {

std::unique_ptr<const DatasetEntry::Loader> configure_arrays(const Options& data);

namespace {

namespace fs = std::filesystem;

/// A folder of .npy files, or one safetensors file.
class ArrayFiles {
 public:
  explicit ArrayFiles(std::string path) : path_(std::move(path)) {
    if (fs::is_directory(path_)) return;
    try {
      file_.emplace(path_, SymbolicLink::kFollowed);
    } catch (const CheckpointError& error) {
      throw DataError(error.what());
    }
  }

  [[nodiscard]] bool has(const std::string& name) const {
    return file_ ? file_->find(name) != nullptr : fs::exists(npy_path(name));
  }

  [[nodiscard]] RawArray read(const std::string& name) const {
    if (!file_) return read_raw_npy(npy_path(name));
    const TensorEntry* entry = file_->find(name);
    if (entry == nullptr) throw DataError(concat(path_, ": holds no tensor ", name));
    RawArray array{
        .place = concat(path_, ": ", name), .dtype = entry->dtype, .shape = entry->shape};
    static_cast<void>(array.checked_num_bytes());
    array.bytes.resize(static_cast<std::size_t>(entry->num_bytes()));
    try {
      file_->read(*entry, array.bytes.data());
    } catch (const CheckpointError& error) {
      throw DataError(error.what());
    }
    return array;
  }

 private:
  [[nodiscard]] std::string npy_path(const std::string& name) const {
    return (fs::path(path_) / (name + ".npy")).string();
  }

  std::string path_;
  std::optional<SafetensorsFile> file_;
};

struct Pair {
  RawArray inputs;
  RawArray targets;
  std::int64_t num_outputs = 0;
};

/// Throws DataError for a number that is not finite: training would end with it.
void check_finite(const RawArray& array) {
  if (!array.is_floating()) return;
  const std::vector<float> values = array.floats();
  const auto bad = std::ranges::find_if_not(values, [](float x) { return std::isfinite(x); });
  if (bad == values.end()) return;
  throw DataError(concat(array.place, ": element ", bad - values.begin(), ": is ", *bad,
                         ", allowed: finite numbers"));
}

// A model has an output for every class.
constexpr std::int64_t kMostClasses = arrays::kNumClasses.rule.rule.max;

/// The largest class and one more. Throws DataError for a class below 0 or not below `most`.
std::int64_t count_classes(const RawArray& targets, std::int64_t most) {
  std::int64_t largest = 0;
  const std::vector<std::int64_t> classes = targets.integers();
  for (std::size_t i = 0; i < classes.size(); ++i) {
    if (classes[i] < 0 || classes[i] >= most) {
      throw DataError(concat(targets.place, ": element ", i, ": class ", classes[i],
                             ", allowed: 0 to ", most - 1));
    }
    largest = std::max(largest, classes[i]);
  }
  return largest + 1;
}

/// Throws DataError if the targets have a class for which there are not enough samples. One stray
/// label would cost a model an output for every class below it.
void check_for_strays(const RawArray& targets, std::int64_t num_samples) {
  if (targets.is_floating() || targets.num_rows() == 0) return;
  const std::vector<std::int64_t> classes = targets.integers();
  const auto largest = std::ranges::max_element(classes);
  if (*largest < num_samples) return;
  throw DataError(concat(targets.place, ": element ", largest - classes.begin(), ": class ",
                         *largest, ", but there are ", num_samples,
                         " samples; correct it, or give data.num_classes if there are so many "
                         "classes"));
}

Pair read_pair(const ArrayFiles& files, const std::string& part,
               std::optional<std::int64_t> num_classes) {
  Pair pair{.inputs = files.read(part + "_inputs"), .targets = files.read(part + "_targets")};
  if (pair.inputs.shape.size() < 2 || pair.inputs.shape.size() > 4 || pair.inputs.row_numel() < 1) {
    throw DataError(concat(pair.inputs.place, ": has the shape [", join(pair.inputs.shape, ", "),
                           "], allowed: [samples, features], [samples, height, width] or "
                           "[samples, channels, height, width]"));
  }
  const std::size_t most = pair.targets.is_floating() ? 2 : 1;
  if (pair.targets.shape.empty() || pair.targets.shape.size() > most ||
      pair.targets.row_numel() < 1) {
    throw DataError(concat(pair.targets.place, ": has the shape [", join(pair.targets.shape, ", "),
                           "], allowed: [samples] with integers (classes), or [samples] or "
                           "[samples, numbers] with float32 or float64"));
  }
  if (pair.inputs.num_rows() != pair.targets.num_rows()) {
    throw DataError(concat(pair.targets.place, ": holds ", pair.targets.num_rows(),
                           " targets, but ", pair.inputs.place, " holds ", pair.inputs.num_rows(),
                           " samples; the two do not belong together"));
  }
  if (pair.inputs.num_rows() == 0) throw DataError(concat(pair.inputs.place, ": holds no samples"));
  check_finite(pair.inputs);
  check_finite(pair.targets);
  if (!pair.targets.is_floating()) {
    const std::int64_t count = count_classes(pair.targets, num_classes.value_or(kMostClasses));
    pair.num_outputs = num_classes.value_or(count);
  } else if (num_classes) {
    throw DataError(concat(pair.targets.place,
                           ": holds numbers, and data.num_classes is for classes; leave it out"));
  } else {
    pair.num_outputs = pair.targets.row_numel();
  }
  return pair;
}

/// Rows [first, last) of an array.
RawArray rows_of(const RawArray& array, std::int64_t first, std::int64_t last) {
  const std::int64_t row = std::ssize(array.bytes) / array.num_rows();
  RawArray part{.place = array.place, .dtype = array.dtype, .shape = array.shape};
  part.shape.front() = last - first;
  part.bytes.assign(array.bytes.begin() + first * row, array.bytes.begin() + last * row);
  return part;
}

SampleShape shape_of(const RawArray& inputs, std::int64_t num_outputs) {
  const auto from_the_end = [&](std::size_t k) {
    return inputs.shape.size() > k ? inputs.shape[inputs.shape.size() - k] : 1;
  };
  return {.height = from_the_end(2),
          .width = from_the_end(1),
          .num_outputs = num_outputs,
          .channels = from_the_end(3)};
}

std::shared_ptr<const Samples> samples_of(const Pair& pair, const SampleShape& shape) {
  ArraySamples::Content content;
  if (pair.inputs.dtype == "U8") {
    content.values = pair.inputs.octets();
  } else {
    content.values = pair.inputs.floats();
  }
  if (pair.targets.is_floating()) {
    content.numbers = pair.targets.floats();
  } else {
    content.labels = pair.targets.integers();
  }
  return std::make_shared<const ArraySamples>(shape, pair.inputs.num_rows(), std::move(content));
}

/// The last tenth validates.
std::pair<Pair, Pair> split(const Pair& all) {
  const std::int64_t size = all.inputs.num_rows();
  if (size < 2) {
    throw DataError(concat(all.inputs.place,
                           ": holds 1 sample, which cannot be split into "
                           "training and validation"));
  }
  const std::int64_t place = std::clamp<std::int64_t>(size * 9 / 10, 1, size - 1);
  const auto part = [&all](std::int64_t first, std::int64_t last) {
    return Pair{.inputs = rows_of(all.inputs, first, last),
                .targets = rows_of(all.targets, first, last),
                .num_outputs = all.num_outputs};
  };
  return {part(0, place), part(place, size)};
}

class Arrays : public DatasetEntry::Loader {
 public:
  explicit Arrays(const Options& data)
      : path_(data.read(arrays::kPath)), num_classes_(data.read(arrays::kNumClasses)) {
    if (path_.empty()) {
      data.fail("path", "is empty, allowed: a folder of .npy files, or a safetensors file");
    }
  }

  [[nodiscard]] Dataset load(std::uint64_t /*seed*/) const override {
    const ArrayFiles files(path_);
    Pair train = read_pair(files, "train", num_classes_);
    Pair validation;
    const bool has_validation = files.has("val_inputs") || files.has("val_targets");
    if (has_validation) validation = read_pair(files, "val", num_classes_);
    if (!num_classes_) {
      const std::int64_t num_samples = train.inputs.num_rows() + validation.inputs.num_rows();
      check_for_strays(train.targets, num_samples);
      check_for_strays(validation.targets, num_samples);
    }
    if (!has_validation) std::tie(train, validation) = split(train);
    check_alike(train.inputs, validation.inputs);
    check_alike(train.targets, validation.targets);
    const SampleShape shape =
        shape_of(train.inputs, std::max(train.num_outputs, validation.num_outputs));
    return {.train = samples_of(train, shape), .validation = samples_of(validation, shape)};
  }

 private:
  static void check_alike(const RawArray& train, const RawArray& validation) {
    if (train.dtype == validation.dtype && train.shape.size() == validation.shape.size() &&
        std::equal(train.shape.begin() + 1, train.shape.end(), validation.shape.begin() + 1)) {
      return;
    }
    throw DataError(concat(validation.place, ": ", validation.dtype, " in rows of ",
                           validation.row_numel(), " elements, but ", train.place, " has ",
                           train.dtype, " in rows of ", train.row_numel(),
                           "; training and validation must have the same shape and type"));
  }

  std::string path_;
  std::optional<std::int64_t> num_classes_;
};

}  // namespace

std::unique_ptr<const DatasetEntry::Loader> configure_arrays(const Options& data) {
  return std::make_unique<const Arrays>(data);
}

}  // namespace gossamer::apps
