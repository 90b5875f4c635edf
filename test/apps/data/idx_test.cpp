#include "test/apps/data/array_view.hpp"
#include "test/apps/data/idx_writer.hpp"
#include "test/base/thrown.hpp"
#include "test/golden/golden_folder.hpp"

#include <algorithm>
#include <array>
#include <string>

#include <gtest/gtest.h>

#include "apps/data/dataset.hpp"
#include "base/error.hpp"

namespace gossamer::apps {
namespace {

/// `keys` follow the path, each after a comma.
ArrayViews load(const std::filesystem::path& path, const std::string& keys = "") {
  const Options options = Options::parse("path: \"" + path.string() + "\"" + keys);
  const auto loader = configure_dataset("idx", options);
  options.reject_unknown();
  return ArrayViews(loader->load(1));
}

void expect_refused(const std::filesystem::path& path, const std::string& keys,
                    const std::vector<std::string>& parts) {
  const std::string message = what_of<DataError>([&] { load(path, keys); });
  for (const std::string& part : parts) {
    EXPECT_TRUE(contains(message, part)) << keys << ": " << message << "\nlacks: " << part;
  }
}

/// The first pixel of idx_images() tells which image it is; its label is that modulo 10.
void expect_images(const ArrayView& images, std::int64_t first, std::int64_t last) {
  ASSERT_EQ(images.size, last - first);
  EXPECT_EQ(images.height, 3);
  EXPECT_EQ(images.width, 4);
  ASSERT_EQ(std::ssize(images.values), images.size * 12);
  ASSERT_EQ(std::ssize(images.labels), images.size);
  for (std::int64_t i = 0; i < images.size; ++i) {
    EXPECT_EQ(images.sample(i)[0], (31 * (first + i)) % 256);
    EXPECT_EQ(images.labels[static_cast<std::size_t>(i)], (first + i) % 10);
  }
}

std::filesystem::path write_pair(const TemporaryFolder& folder, const std::string& stem,
                                 std::uint32_t count, std::uint32_t classes = 10) {
  folder.write(stem + "labels-idx1-ubyte", idx_labels(count, classes));
  return folder.write(stem + "images-idx3-ubyte", idx_images(count));
}

TEST(Idx, SplitsASinglePairFiveToOne) {
  const TemporaryFolder folder;
  const auto images = write_pair(folder, "anything-", 60);
  for (const auto& path : {folder.path(), images}) {
    const ArrayViews data = load(path);
    expect_images(data.train, 0, 50);
    expect_images(data.validation, 50, 60);
    EXPECT_EQ(data.train.num_outputs, 10);
    EXPECT_EQ(data.validation.num_outputs, 10);
  }
}

TEST(Idx, TakesTrainAndTestFilesOfAFolder) {
  const TemporaryFolder folder;
  write_pair(folder, "train-", 60, 7);
  write_pair(folder, "t10k-", 20);
  const ArrayViews data = load(folder.path());
  EXPECT_EQ(data.train.size, 60);
  expect_images(data.validation, 0, 20);
  // 7 labels occur in one file, 10 in the other.
  EXPECT_EQ(data.train.num_outputs, 10);
  EXPECT_EQ(data.validation.num_outputs, 10);
}

TEST(Idx, KeepsOnlyTheRangesAskedFor) {
  const TemporaryFolder folder;
  write_pair(folder, "train-", 60);
  const ArrayViews one = load(folder.path(), ", train_range: [40, 55], val_range: [3, 10]");
  expect_images(one.train, 40, 55);
  expect_images(one.validation, 3, 10);
  EXPECT_EQ(one.train.num_outputs, 10) << "labels outside of the range count too";
  write_pair(folder, "t10k-", 20);
  const ArrayViews two = load(folder.path(), ", train_range: [40, 60], val_range: [0, 20]");
  expect_images(two.train, 40, 60);
  expect_images(two.validation, 0, 20);
}

TEST(Idx, OneRangeLeavesTheOtherAtItsDefault) {
  const TemporaryFolder folder;
  write_pair(folder, "train-", 60);
  const ArrayViews small = load(folder.path(), ", train_range: [0, 10]");
  expect_images(small.train, 0, 10);
  expect_images(small.validation, 50, 60);
  const ArrayViews late = load(folder.path(), ", val_range: [55, 60]");
  expect_images(late.train, 0, 50);
  expect_images(late.validation, 55, 60);
}

TEST(Idx, RefusesRangesBeyondTheFile) {
  const TemporaryFolder folder;
  const auto images = write_pair(folder, "train-", 60);
  expect_refused(folder.path(), ", train_range: [0, 61]",
                 {images.string(), "60 images", "train_range [0, 61)"});
  expect_refused(folder.path(), ", val_range: [70, 80]", {"60 images", "val_range [70, 80)"});
  write_pair(folder, "t10k-", 20);
  expect_refused(folder.path(), ", val_range: [0, 21]", {"t10k-images", "20 images", "[0, 21)"});
}

TEST(Idx, RefusesRangesThatOverlapInOneFileOnly) {
  const TemporaryFolder folder;
  const auto images = write_pair(folder, "train-", 60);
  expect_refused(images, ", train_range: [0, 31], val_range: [30, 60]",
                 {images.string(), "train_range [0, 31)", "val_range [30, 60)", "overlap"});
  expect_refused(images, ", train_range: [20, 25], val_range: [10, 60]", {"overlap"});
  expect_refused(images, ", train_range: [0, 60]", {"val_range [50, 60)", "overlap"});
  EXPECT_NO_THROW(load(images, ", train_range: [0, 30], val_range: [30, 60]"));
  write_pair(folder, "t10k-", 60);
  EXPECT_NO_THROW(load(folder.path(), ", train_range: [0, 31], val_range: [30, 60]"));
}

TEST(Idx, AcceptsTheNamesOfItsRelatives) {
  for (const auto& [train, test] : {std::array<std::string, 2>{"train-", "t10k-"},
                                    {"emnist-letters-train-", "emnist-letters-test-"},
                                    {"train-", "test-"}}) {
    const TemporaryFolder folder;
    write_pair(folder, train, 60);
    write_pair(folder, test, 20);
    EXPECT_EQ(load(folder.path()).validation.size, 20) << train << " " << test;
    EXPECT_EQ(load(folder.path() / (test + "images-idx3-ubyte")).train.size, 16);
  }
}

TEST(Idx, FindsLabelsInEverySpelling) {
  const Bytes images = idx_images(12);
  const Bytes labels = idx_labels(12);
  for (const char* images_name : {"t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte"}) {
    for (const char* labels_name : {"t10k-labels-idx1-ubyte", "t10k-labels.idx1-ubyte"}) {
      const TemporaryFolder folder;
      const auto path = folder.write(images_name, images);
      const auto packed = folder.write(std::string(images_name) + ".gz", gzip(images));
      const auto labels_path = folder.write(labels_name, labels);
      EXPECT_EQ(load(path).train.size, 10);
      EXPECT_EQ(load(packed).train.size, 10);
      EXPECT_EQ(load(folder.path()).train.size, 10) << "a packed copy is no second data set";
      std::filesystem::remove(labels_path);
      folder.write(std::string(labels_name) + ".gz", gzip(labels));
      EXPECT_EQ(load(path).train.size, 10);
      EXPECT_EQ(load(packed).train.size, 10);
    }
  }
}

TEST(Idx, NamesWhatIsMissing) {
  const TemporaryFolder folder;
  expect_refused(folder.path(), "", {folder.path().string(), "train-images-idx3-ubyte"});
  expect_refused(folder.path() / "none", "", {"none", "no such file or folder"});
  const auto images = folder.write("train-images-idx3-ubyte.gz", gzip(idx_images(5)));
  for (const auto& path : {folder.path(), images}) {
    expect_refused(path, "",
                   {images.string(), "train-labels-idx1-ubyte.gz", "train-labels.idx1-ubyte",
                    folder.path().string()});
  }
  const auto other = folder.write("pictures.bin", idx_images(5));
  expect_refused(other, "", {"pictures.bin", "*images-idx3-ubyte"});
}

TEST(Idx, RefusesAFolderOfSeveralDataSets) {
  const TemporaryFolder folder;
  write_pair(folder, "emnist-letters-train-", 12);
  write_pair(folder, "emnist-digits-test-", 12);
  expect_refused(folder.path(), "",
                 {"several", "emnist-letters-train-images-idx3-ubyte",
                  "emnist-digits-test-images-idx3-ubyte"});
}

TEST(Idx, RefusesLabelsOfAnotherCount) {
  const TemporaryFolder folder;
  const auto images = folder.write("train-images-idx3-ubyte", idx_images(12));
  const auto labels = folder.write("train-labels-idx1-ubyte", idx_labels(11));
  expect_refused(images, "",
                 {images.string(), labels.string(), "12 images", "11 labels", "byte 4"});
}

TEST(Idx, RefusesDamageOutsideOfTheRangesToo) {
  const TemporaryFolder folder;
  const auto labels = folder.write("train-labels-idx1-ubyte", idx_labels(12));
  const Bytes content = idx_images(12);
  const auto images =
      folder.write("train-images-idx3-ubyte", first_bytes(content, content.size() - 1));
  const std::string ranges = ", train_range: [0, 2], val_range: [2, 3]";
  expect_refused(images, ranges, {images.string(), "byte 159", "incomplete"});
  folder.write("train-images-idx3-ubyte", concatenated(content, {1}));
  expect_refused(images, ranges, {images.string(), "byte 160", "more bytes follow"});
  folder.write("train-images-idx3-ubyte", content);
  EXPECT_NO_THROW(load(images, ranges));
  folder.write("train-labels-idx1-ubyte", first_bytes(idx_labels(12), 15));
  expect_refused(images, ranges, {labels.string(), "byte 15", "incomplete"});
}

TEST(Idx, RefusesTrainAndTestImagesOfDifferentSize) {
  const TemporaryFolder folder;
  write_pair(folder, "train-", 12);
  write_pair(folder, "t10k-", 12);
  folder.write("t10k-images-idx3-ubyte", idx_images(12, 4, 3));
  expect_refused(folder.path(), "", {"t10k-images", "4 x 3", "3 x 4"});
}

TEST(Idx, RefusesASingleImage) {
  const TemporaryFolder folder;
  expect_refused(write_pair(folder, "train-", 1), "", {"holds 1 image"});
}

TEST(Idx, ChecksItsKeysBeforeItTouchesAFile) {
  EXPECT_THROW(configure_dataset("idx", Options()), ConfigError);
  EXPECT_THROW(configure_dataset("idx", Options::parse("path: \"\"")), ConfigError);
  EXPECT_THROW(configure_dataset("idx", Options::parse("path: nowhere, val_range: [5, 5]")),
               ConfigError);
  EXPECT_NO_THROW(configure_dataset("idx", Options::parse("path: nowhere")));
}

TEST(Idx, ReadsTheTestSetOfMnist) {
  const auto path = shared_folder() / "data" / "mnist" / "t10k-images-idx3-ubyte.gz";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << "no file data/mnist/t10k-images-idx3-ubyte.gz in " << shared_folder()
                 << "; GOSSAMER_SHARED names that folder";
  }
  const ArrayViews data = load(path, ", train_range: [0, 8500], val_range: [8500, 10000]");
  EXPECT_EQ(data.train.size, 8500);
  EXPECT_EQ(data.validation.size, 1500);
  EXPECT_EQ(data.train.height, 28);
  EXPECT_EQ(data.train.width, 28);
  EXPECT_EQ(data.train.num_outputs, 10);
  // The first labels and the count of each digit, as published.
  EXPECT_TRUE(std::ranges::equal(std::span(data.train.labels).first(5),
                                 std::array<std::int64_t, 5>{7, 2, 1, 0, 4}));
  std::array<int, 10> counts{};
  for (const ArrayView* images : {&data.train, &data.validation}) {
    for (const std::int64_t label : images->labels) ++counts.at(static_cast<std::size_t>(label));
  }
  EXPECT_EQ(counts, (std::array{980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009}));
  double sum = 0;
  for (const ArrayView* images : {&data.train, &data.validation}) {
    for (const std::uint8_t pixel : images->values) sum += pixel;
  }
  EXPECT_NEAR(sum / 255 / 7'840'000, 0.1325, 0.0005);
}

}  // namespace
}  // namespace gossamer::apps
