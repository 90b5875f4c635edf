#include "apps/data/npy.hpp"

#include "test/apps/data/npy_writer.hpp"
#include "test/apps/folder.hpp"
#include "test/base/thrown.hpp"

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer::apps {
namespace {

TEST(Npy, ReadsWhatItWrites) {
  const Folder folder;
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{}, {3}, {2, 3}, {0, 4}, {1, 2, 3}}) {
    NpyArray array{.shape = shape, .values = {}};
    std::int64_t numel = 1;
    for (const std::int64_t size : shape) numel *= size;
    for (std::int64_t i = 0; i < numel; ++i) array.values.push_back(static_cast<float>(i) / 3.0F);
    write_npy(folder.file("a.npy"), array);
    const NpyArray back = read_npy(folder.file("a.npy"));
    EXPECT_EQ(back.shape, array.shape);
    EXPECT_EQ(back.values, array.values);
    EXPECT_EQ(fs::file_size(folder.file("a.npy")) % 4, 0U);
  }
}

TEST(Npy, RefusesEverythingElse) {
  const Folder folder;
  write_npy(folder.file("a.npy"), {{2, 3}, std::vector<float>(6)});
  const std::string good = read_file(folder.file("a.npy"));
  const auto error_of = [&](const std::string& bytes) {
    std::ofstream(folder.file("b.npy"), std::ios::binary) << bytes;
    return what_of<DataError>([&] { read_npy(folder.file("b.npy")); });
  };
  EXPECT_EQ(error_of(good), "");
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_NE(error_of(good.substr(0, length)), "") << length;
  }
  EXPECT_NE(error_of(good + "x"), "");
  const auto replaced = [&](const std::string& what, const std::string& with) {
    std::string bytes = good;
    return error_of(bytes.replace(bytes.find(what), what.size(), with));
  };
  EXPECT_TRUE(contains(replaced("False", "True "), "C order"));
  EXPECT_TRUE(contains(replaced("(2, 3)", "(9, 9)"), "cut off or damaged"));
  EXPECT_TRUE(contains(replaced("'<f4'", "'<c8'"), "allowed: float32, float64"));
  EXPECT_TRUE(contains(replaced("NUMPY", "numpy"), "is not a .npy file"));
  EXPECT_NE(replaced("(2, 3)", "(2,-3)"), "");
}

TEST(Npy, ReadsOtherTypes) {
  const Folder folder;
  write_npy<double>(folder.file("a.npy"), "<f8", {3}, {1.5, -2.0, 0.25});
  const RawArray doubles = read_raw_npy(folder.file("a.npy"));
  EXPECT_TRUE(
      contains(what_of<DataError>([&] { read_npy(folder.file("a.npy")); }), "is not float32"));
  EXPECT_EQ(doubles.floats(), (std::vector<float>{1.5F, -2.0F, 0.25F}));
  EXPECT_THROW(static_cast<void>(doubles.integers()), DataError);
  EXPECT_THROW(static_cast<void>(doubles.octets()), DataError);
  write_npy<std::int32_t>(folder.file("a.npy"), "<i4", {2, 1}, {-7, 9});
  const RawArray integers = read_raw_npy(folder.file("a.npy"));
  EXPECT_EQ(integers.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(integers.integers(), (std::vector<std::int64_t>{-7, 9}));
  EXPECT_EQ(integers.floats(), (std::vector<float>{-7.0F, 9.0F}));
  write_npy<std::int64_t>(folder.file("a.npy"), "<i8", {1}, {std::int64_t{1} << 40U});
  EXPECT_EQ(read_raw_npy(folder.file("a.npy")).integers().front(), std::int64_t{1} << 40U);
  write_npy<std::uint8_t>(folder.file("a.npy"), "|u1", {2}, {0, 255});
  EXPECT_EQ(read_raw_npy(folder.file("a.npy")).octets(), (std::vector<std::uint8_t>{0, 255}));
}

}  // namespace
}  // namespace gossamer::apps
