#include "core/state/row_major_visitor.hpp"

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "core/state/state_copy.hpp"

namespace gossamer {
namespace {

/// Layouts of 24 elements, beside the rows of the same values.
const std::vector<MemoryLayout> kLayouts = {
    {{24}, {1}},
    {{4, 6}, {6, 1}},
    {{4, 6}, {1, 4}},
    {{2, 3, 2, 2}, {12, 1, 6, 3}},
    {{1, 24, 1}, {7, 1, 99}},
    {{2, 1, 12}, {1, 5, 2}},
};

TEST(MemoryLayout, KnowsRowsByItsStrides) {
  EXPECT_TRUE(kLayouts[0].is_row_major());
  EXPECT_TRUE(kLayouts[1].is_row_major());
  EXPECT_FALSE(kLayouts[2].is_row_major());
  EXPECT_FALSE(kLayouts[3].is_row_major());
  EXPECT_TRUE(kLayouts[4].is_row_major()) << "strides of dimensions of one do not count";
  EXPECT_FALSE(kLayouts[5].is_row_major());
  EXPECT_TRUE((MemoryLayout{{}, {}}).is_row_major());
  EXPECT_TRUE((MemoryLayout{{3, 0}, {1, 3}}).is_row_major());
}

TEST(MemoryLayout, GivesElementsInRows) {
  std::vector<double> memory(24);
  std::iota(memory.begin(), memory.end(), 0.0);
  std::vector<double> rows(24);
  // A matrix that is transposed in memory.
  to_row_major(kLayouts[2], block_of(std::span(memory)), block_of(std::span(rows)));
  EXPECT_EQ(rows[0], 0.0);
  EXPECT_EQ(rows[1], 4.0);
  EXPECT_EQ(rows[6], 1.0);
  // channels_last: channel 1 lies beside channel 0.
  to_row_major(kLayouts[3], block_of(std::span(memory)), block_of(std::span(rows)));
  EXPECT_EQ(rows[1], 3.0);
  EXPECT_EQ(rows[4], 1.0);
}

template <class T>
void expect_round_trips() {
  for (const MemoryLayout& layout : kLayouts) {
    std::vector<T> memory(24);
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<T>(i);
    std::vector<T> rows(24);
    std::vector<T> again(24);
    to_row_major(layout, block_of(std::span(memory)), block_of(std::span(rows)));
    from_row_major(layout, block_of(std::span(rows)), block_of(std::span(again)));
    EXPECT_EQ(again, memory);
    EXPECT_EQ(rows == memory, layout.is_row_major());
  }
}

TEST(MemoryLayout, TakesElementsOfEverySize) {
  expect_round_trips<std::uint8_t>();
  expect_round_trips<float>();
  expect_round_trips<double>();
  expect_round_trips<std::int64_t>();
}

TEST(RowMajorVisitor, SavesOneOrderAndLoadsAnother) {
  std::vector<float> saved(24);
  std::iota(saved.begin(), saved.end(), 0.0F);
  std::vector<float> moments = saved;
  std::vector<float> other = {1.0F, 2.0F};
  StateCopy state;
  const auto visit = [&](const MemoryLayout& layout) {
    RowMajorVisitor visitor(state, {{"w", layout}});
    visitor.block("w", block_of(std::span(saved)));
    visitor.block("w/m", block_of(std::span(moments)));
    // Those of other sizes and names stay as they are.
    visitor.block("w/two", block_of(std::span(other)));
    visitor.block("v", block_of(std::span(other)));
  };
  visit(kLayouts[2]);
  state.load();
  visit(kLayouts[1]);
  EXPECT_EQ(saved[1], 4.0F);
  EXPECT_EQ(moments, saved);
  EXPECT_EQ(other, (std::vector<float>{1.0F, 2.0F}));
}

}  // namespace
}  // namespace gossamer
