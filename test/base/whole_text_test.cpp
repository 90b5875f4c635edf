#include "base/whole_text.hpp"

#include "test/base/thrown.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

TEST(WholeText, HasEveryByte) {
  const std::string path = testing::TempDir() + "whole_text_has_every_byte";
  std::string bytes(100'000, 'x');
  bytes[7] = '\0';
  bytes[99'999] = '\r';
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(whole_text(path), bytes);
  std::filesystem::remove(path);
  EXPECT_EQ(whole_text(path), std::nullopt);
}

TEST(WholeText, NamesTheFileThatCannotBeRead) {
  const std::string folder = testing::TempDir();
  const std::string error = what_of<std::filesystem::filesystem_error>([&] { whole_text(folder); });
  EXPECT_CONTAINS(error, folder);
  EXPECT_CONTAINS(error, "Is a directory");
}

}  // namespace
}  // namespace gossamer
