#include "base/buffer.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

TEST(Buffer, IsAlignedAndZero) {
  for (const std::int64_t numel : {1, 7, 31, 32, 33, 1000, 100'003}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt64, DType::kUInt8}) {
      const Buffer buffer(numel, dtype);
      const Block block = buffer.block();
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data) % Buffer::kAlignment, 0U);
      EXPECT_EQ(block.numel, numel);
      EXPECT_EQ(block.dtype, dtype);
      EXPECT_EQ(block.device, Device{});
      const auto* bytes = static_cast<const std::uint8_t*>(block.data);
      EXPECT_TRUE(std::all_of(bytes, bytes + block.bytes(), [](auto b) { return b == 0; }));
    }
  }
}

TEST(Buffer, IsZeroOnReusedMemory) {
  for (int round = 0; round < 20; ++round) {
    const Buffer buffer(64, DType::kFloat64);
    for (double& x : buffer.block().as<double>()) {
      EXPECT_EQ(x, 0.0);
      x = 5.0;
    }
  }
}

TEST(Buffer, CopiesShareTheMemory) {
  Buffer first(4, DType::kInt64);
  const std::weak_ptr<void> life = first.owner();
  {
    const Buffer second = first;
    EXPECT_EQ(second.block().data, first.block().data);
    second.block().as<std::int64_t>()[2] = 9;
    EXPECT_EQ(first.block().as<std::int64_t>()[2], 9);
    first = Buffer();
    EXPECT_FALSE(life.expired());
    EXPECT_EQ(second.block().as<std::int64_t>()[2], 9);
  }
  EXPECT_TRUE(life.expired());
}

TEST(Buffer, OwnerAloneKeepsTheMemory) {
  std::shared_ptr<void> owner;
  Block block;
  {
    const Buffer buffer(3, DType::kFloat32);
    owner = buffer.owner();
    block = buffer.block();
  }
  block.as<float>()[2] = 1.5F;
  EXPECT_EQ(block.as<float>()[2], 1.5F);
}

TEST(Buffer, MayBeEmpty) {
  const Buffer buffer(0, DType::kFloat32);
  EXPECT_NE(buffer.block().data, nullptr);
  EXPECT_EQ(buffer.block().numel, 0);
  EXPECT_EQ(buffer.block().bytes(), 0);
  EXPECT_TRUE(buffer.block().as<float>().empty());
  EXPECT_EQ(Buffer().block().data, nullptr);
  EXPECT_EQ(Buffer().block().numel, 0);
  EXPECT_EQ(Buffer().owner(), nullptr);
}

TEST(Buffer, RefusesImpossibleSizes) {
  EXPECT_THROW(Buffer(-1, DType::kFloat32), std::logic_error);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt64, DType::kUInt8}) {
    EXPECT_THROW(Buffer(kMost, dtype), std::bad_alloc);
    EXPECT_THROW(Buffer(kMost / size_of(dtype), dtype), std::bad_alloc);
  }
}

TEST(Block, RefusesAnotherElementType) {
  const Buffer buffer(4, DType::kFloat32);
  EXPECT_EQ(buffer.block().as<float>().size(), 4U);
  EXPECT_THROW((void)buffer.block().as<double>(), std::logic_error);
  EXPECT_THROW((void)ConstBlock(buffer.block()).as<std::int64_t>(), std::logic_error);
}

TEST(Block, KnowsItsBytes) {
  EXPECT_EQ((Block{nullptr, 5, DType::kFloat32, {}}.bytes()), 20);
  EXPECT_EQ((Block{nullptr, 5, DType::kFloat64, {}}.bytes()), 40);
  EXPECT_EQ((Block{nullptr, 5, DType::kInt64, {}}.bytes()), 40);
  EXPECT_EQ((Block{nullptr, 5, DType::kUInt8, {}}.bytes()), 5);
  std::vector<double> values = {1, 2, 3};
  const Block block = block_of(std::span<double>(values));
  EXPECT_EQ(block.numel, 3);
  EXPECT_EQ(block.dtype, DType::kFloat64);
  EXPECT_EQ(block.data, values.data());
}

TEST(Device, HasAName) {
  EXPECT_EQ(to_string(Device{}), "cpu");
  EXPECT_EQ(to_string(Device{DeviceType::kCuda, 2}), "cuda:2");
}

}  // namespace
}  // namespace gossamer
