#include "test/apps/data/array_view.hpp"
#include "test/apps/folder.hpp"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/data/dataset.hpp"
#include "base/error.hpp"

namespace gossamer::apps::text_test {
namespace {

/// 100 bytes: 0, 1, 2, ...
std::string write_text(const Folder& folder) {
  std::string bytes;
  for (int i = 0; i < 100; ++i) bytes += static_cast<char>(i);
  std::ofstream(folder.file("text"), std::ios::binary) << bytes;
  return folder.file("text");
}

Dataset load(const std::string& path, const std::string& more) {
  const std::string yaml = concat("path: ", path, ", ", more);
  return configure_dataset("text", Options::parse(yaml))->load(1);
}

TEST(Text, CutsAFileIntoWindows) {
  const Folder folder;
  const Dataset data = load(write_text(folder), "context: 7");
  EXPECT_EQ(data.train->kind(), SampleKind::kTokens);
  EXPECT_EQ(data.train->shape().num_outputs, 256);
  // 90 bytes train: a window is 7 bytes and the one that follows.
  EXPECT_EQ(data.train->size(), 12);
  EXPECT_EQ(data.validation->size(), 1);
  EXPECT_EQ(window(*data.validation, 0)[0], 90);
  for (std::int64_t i = 0; i < data.train->size(); ++i) {
    const std::vector<std::int64_t> tokens = window(*data.train, i);
    ASSERT_EQ(tokens.size(), 8U);
    for (std::int64_t j = 0; j < 8; ++j) {
      EXPECT_EQ(tokens[static_cast<std::size_t>(j)], 7 * i + j);
    }
  }
}

TEST(Text, TakesRangesOfBytes) {
  const Folder folder;
  const Dataset data =
      load(write_text(folder), "context: 4, train_range: [50, 80], val_range: [0, 9]");
  EXPECT_EQ(data.train->size(), 7);
  EXPECT_EQ(window(*data.train, 0)[0], 50);
  EXPECT_EQ(data.validation->size(), 2);
  EXPECT_EQ(window(*data.validation, 1)[4], 8);
}

TEST(Text, SaysWhatIsWrong) {
  const Folder folder;
  const std::string path = write_text(folder);
  EXPECT_THROW(load(folder.file("nothing"), "context: 4"), DataError);
  EXPECT_THROW(load(path, "context: 90"), DataError) << "no window fits";
  EXPECT_THROW(load(path, "train_range: [0, 101]"), DataError);
  EXPECT_THROW(load(path, "train_range: [0, 50], val_range: [49, 100]"), DataError);
  EXPECT_THROW(load(path, "context: 0"), ConfigError);
}

}  // namespace
}  // namespace gossamer::apps::text_test
