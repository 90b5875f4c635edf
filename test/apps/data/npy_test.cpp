#include "apps/data/npy.hpp"

#include "test/apps/data/npy_writer.hpp"
#include "test/apps/folder.hpp"
#include "test/base/thrown.hpp"

#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer::apps::npy_test {
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
  EXPECT_TRUE(contains(replaced("False", "Maybe"), "no fortran_order"));
  EXPECT_TRUE(contains(replaced("(2, 3)", "(9, 9)"), "cut off or damaged"));
  EXPECT_TRUE(contains(replaced("'<f4'", "'<c8'"), "allowed: float16, float32, float64"));
  EXPECT_TRUE(contains(replaced("'<f4'", "'>f4'"), "little endian"));
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
  write_npy<std::int16_t>(folder.file("a.npy"), "<i2", {2}, {-300, 300});
  EXPECT_EQ(read_raw_npy(folder.file("a.npy")).integers(), (std::vector<std::int64_t>{-300, 300}));
  EXPECT_FALSE(read_raw_npy(folder.file("a.npy")).is_floating());
  write_npy<std::uint16_t>(folder.file("a.npy"), "<u2", {1}, {65'535});
  EXPECT_EQ(read_raw_npy(folder.file("a.npy")).floats(), (std::vector<float>{65'535.0F}));
}

TEST(Npy, ReadsFloat16) {
  const Folder folder;
  // 1, -2, the largest and the smallest number, the largest without a leading 1, -0, infinity.
  write_npy<std::uint16_t>(folder.file("a.npy"), "<f2", {8},
                           {0x3c00, 0xc000, 0x7bff, 0x0001, 0x03ff, 0x8000, 0x7c00, 0x7c01});
  const RawArray array = read_raw_npy(folder.file("a.npy"));
  EXPECT_TRUE(array.is_floating());
  const std::vector<float> values = array.floats();
  const std::vector<float> expected = {1.0F,
                                       -2.0F,
                                       65'504.0F,
                                       std::ldexp(1.0F, -24),
                                       1023.0F * std::ldexp(1.0F, -24),
                                       0.0F,
                                       std::numeric_limits<float>::infinity()};
  EXPECT_EQ(std::vector<float>(values.begin(), values.end() - 1), expected);
  EXPECT_TRUE(std::signbit(values[5]));
  EXPECT_TRUE(std::isnan(values[7]));
}

TEST(Npy, ReadsFortranOrder) {
  const Folder folder;
  // Element [i, j, k] is 100 i + 10 j + k; the first index runs fastest.
  write_npy<std::int16_t>(folder.file("a.npy"), "<i2", {2, 3, 2},
                          {0, 100, 10, 110, 20, 120, 1, 101, 11, 111, 21, 121}, true);
  const RawArray array = read_raw_npy(folder.file("a.npy"));
  EXPECT_EQ(array.shape, (std::vector<std::int64_t>{2, 3, 2}));
  EXPECT_EQ(array.integers(),
            (std::vector<std::int64_t>{0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121}));
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {0, 4}, {1}}) {
    const std::vector<float> values(shape.size() == 2 ? 0 : 1, 7.0F);
    write_npy(folder.file("a.npy"), "<f4", shape, values, true);
    EXPECT_EQ(read_npy(folder.file("a.npy")).values, values);
  }
}

}  // namespace
}  // namespace gossamer::apps::npy_test
