// The data set `arrays`.

#include "test/apps/data/npy_writer.hpp"
#include "test/apps/folder.hpp"
#include "test/base/thrown.hpp"

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/data/array_samples.hpp"
#include "apps/data/dataset.hpp"
#include "base/error.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer::apps::arrays_test {
namespace {

/// `options`: more keys of the section, as `, key: value`.
Dataset load(const std::string& path, const std::string& options = "") {
  const std::string section = concat("path: \"", path, "\"", options);
  return configure_dataset("arrays", Options::parse(section))->load(1);
}

std::string error_of(const std::string& path, const std::string& options = "") {
  return what_of<DataError>([&] { load(path, options); });
}

std::vector<float> values_of(const Samples& samples, std::int64_t index) {
  std::vector<float> values(static_cast<std::size_t>(samples.shape().numel()));
  samples.copy_array(index, values);
  return values;
}

/// `size` rows of two numbers: i and -i.
void write_table(const Folder& folder, const std::string& part, std::int64_t size) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < size; ++i) {
    values.push_back(static_cast<float>(i));
    values.push_back(static_cast<float>(-i));
  }
  write_npy(folder.file(part + "_inputs.npy"), "<f4", {size, 2}, values);
}

TEST(Arrays, HoldTablesWithNumbersAsTargets) {
  const Folder folder;
  write_table(folder, "train", 7);
  write_npy<double>(folder.file("train_targets.npy"), "<f8", {7}, {0, 1, 4, 9, 16, 25, 36});
  write_table(folder, "val", 2);
  write_npy<double>(folder.file("val_targets.npy"), "<f8", {2}, {0, 1});
  const Dataset data = load(folder.file(""));
  EXPECT_EQ(data.train->kind(), SampleKind::kArrays);
  EXPECT_EQ(data.train->target(), TargetKind::kNumbers);
  EXPECT_EQ(data.train->shape(), (SampleShape{.height = 1, .width = 2, .num_outputs = 1}));
  EXPECT_EQ(data.train->size(), 7);
  EXPECT_EQ(data.validation->size(), 2);
  EXPECT_TRUE(data.train->labels().empty());
  EXPECT_EQ(values_of(*data.train, 3), (std::vector<float>{3.0F, -3.0F}));
  std::vector<float> target(1);
  data.train->copy_numbers(5, target);
  EXPECT_EQ(target[0], 25.0F);
  EXPECT_THROW(data.train->copy_tokens(0, {}), std::logic_error);
}

TEST(Arrays, HoldImagesWithClasses) {
  const Folder folder;
  std::vector<std::uint8_t> pixels(std::size_t{10} * 3 * 2 * 4);
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{0});
  write_npy(folder.file("train_inputs.npy"), "|u1", {10, 3, 2, 4}, pixels);
  write_npy<std::int64_t>(folder.file("train_targets.npy"), "<i8", {10},
                          {0, 1, 2, 0, 1, 2, 0, 1, 2, 5});
  const Dataset data = load(folder.file(""));
  EXPECT_EQ(data.train->target(), TargetKind::kClasses);
  EXPECT_EQ(data.train->shape(),
            (SampleShape{.height = 2, .width = 4, .num_outputs = 6, .channels = 3}));
  EXPECT_EQ(data.train->size(), 9) << "the last tenth validates";
  ASSERT_EQ(data.validation->size(), 1);
  EXPECT_EQ(data.validation->labels()[0], 5);
  EXPECT_FLOAT_EQ(values_of(*data.validation, 0)[1], 217.0F / 127.5F - 1.0F);
}

TEST(Arrays, ComeFromASafetensorsFile) {
  const Folder folder;
  const std::vector<float> inputs = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> targets = {0, 1, 1};
  const auto view = [](const std::string& name, const std::string& dtype,
                       std::vector<std::int64_t> shape, const auto& values) {
    return TensorView{.name = name,
                      .dtype = dtype,
                      .shape = std::move(shape),
                      .data = values.data(),
                      .num_bytes = std::ssize(values) * 4};
  };
  const std::string path = folder.file("data.safetensors");
  static_cast<void>(write_safetensors(path, {view("train_inputs", "F32", {3, 1, 2}, inputs),
                                             view("train_targets", "I32", {3}, targets)}));
  const Dataset data = load(path);
  EXPECT_EQ(data.train->size(), 2);
  EXPECT_EQ(values_of(*data.validation, 0), (std::vector<float>{5, 6}));
  EXPECT_EQ(data.train->shape().num_outputs, 2);

  // As in caches of data.
  const std::string link = folder.file("link");
  std::filesystem::create_symlink(path, link);
  EXPECT_EQ(load(link).train->size(), 2);

  write_bytes(path, read_file(path).substr(0, 40));
  EXPECT_TRUE(contains(error_of(path), path));
  EXPECT_TRUE(contains(error_of(folder.file("nothing")), "nothing"));
}

TEST(Arrays, HaveAsManyClassesAsTheConfigurationSays) {
  const Folder folder;
  const std::string path = folder.file("");
  write_table(folder, "train", 4);
  write_npy<std::int64_t>(folder.file("train_targets.npy"), "<i8", {4}, {0, 1, 0, 9'999'999});
  // A model would have 10 million outputs.
  const std::string error = error_of(path);
  EXPECT_TRUE(contains(error, "train_targets.npy: element 3: class 9999999, but there are 4"));
  EXPECT_TRUE(contains(error, "data.num_classes"));
  EXPECT_TRUE(
      contains(error_of(path, ", num_classes: 4"), "element 3: class 9999999, allowed: 0 to 3"));
  EXPECT_EQ(load(path, ", num_classes: 10000000").train->shape().num_outputs, 10'000'000);
  write_npy<std::int64_t>(folder.file("train_targets.npy"), "<i8", {4}, {0, 1, 0, 1});
  const Dataset data = load(path, ", num_classes: 3");
  EXPECT_EQ(data.train->shape().num_outputs, 3);
  EXPECT_EQ(data.validation->shape().num_outputs, 3);
  // Strays among few validation samples, and all of many classes there.
  write_table(folder, "val", 2);
  write_npy<std::int64_t>(folder.file("val_targets.npy"), "<i8", {2}, {0, 6});
  EXPECT_TRUE(contains(error_of(path), "val_targets.npy: element 1: class 6, but there are 6"));
  write_npy<std::int64_t>(folder.file("val_targets.npy"), "<i8", {2}, {0, 5});
  EXPECT_EQ(load(path).train->shape().num_outputs, 6);
  write_npy<float>(folder.file("train_targets.npy"), "<f4", {4}, {0, 1, 0, 1});
  EXPECT_TRUE(contains(error_of(path, ", num_classes: 3"), "holds numbers"));
}

TEST(Arrays, SaysWhatIsWrong) {
  const Folder folder;
  const std::string path = folder.file("");
  EXPECT_TRUE(contains(error_of(path), "train_inputs.npy"));
  write_table(folder, "train", 4);
  EXPECT_TRUE(contains(error_of(path), "train_targets.npy"));
  const auto with_targets = [&](std::vector<std::int64_t> shape,
                                const std::vector<std::int64_t>& values) {
    write_npy(folder.file("train_targets.npy"), "<i8", shape, values);
    return error_of(path);
  };
  EXPECT_EQ(with_targets({4}, {0, 1, 2, 3}), "");
  EXPECT_TRUE(contains(with_targets({3}, {0, 1, 2}), "holds 3 targets"));
  EXPECT_TRUE(contains(with_targets({4, 1}, {0, 1, 2, 3}), "[4, 1]"));
  EXPECT_TRUE(contains(with_targets({4}, {0, 1, -2, 3}), "element 2: class -2"));
  EXPECT_TRUE(contains(with_targets({4}, {0, 1, 2, std::int64_t{1} << 50U}), "element 3"));
  static_cast<void>(with_targets({4}, {0, 1, 2, 3}));

  write_npy<float>(folder.file("val_inputs.npy"), "<f4", {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_TRUE(contains(error_of(path), "val_targets.npy"));
  write_npy<std::int64_t>(folder.file("val_targets.npy"), "<i8", {2}, {0, 1});
  EXPECT_TRUE(contains(error_of(path), "rows of 3 elements"));
  std::filesystem::remove(folder.file("val_inputs.npy"));
  std::filesystem::remove(folder.file("val_targets.npy"));
  write_npy<float>(folder.file("train_inputs.npy"), "<f4", {4, 2},
                   {0, 1, 2, 3, 4, 5, std::nanf(""), 7});
  EXPECT_TRUE(contains(error_of(path), "element 6: is nan"));
  write_npy<float>(folder.file("train_inputs.npy"), "<f4",
                   {0, std::int64_t{1} << 61U, std::int64_t{1} << 61U}, {});
  EXPECT_TRUE(contains(error_of(path), "more elements than memory"));
  write_npy<float>(folder.file("train_inputs.npy"), "<f4", {4}, {0, 1, 2, 3});
  EXPECT_TRUE(contains(error_of(path), "allowed: [samples, features]"));
}

}  // namespace
}  // namespace gossamer::apps::arrays_test
