#include "optim/rules/muon.hpp"

#include "test/base/thrown.hpp"
#include "test/optim/muon_steps.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/host_stream.hpp"
#include "base/random.hpp"
#include "optim/registry.hpp"

namespace gossamer {
namespace {

TEST(Muon, MovesMatricesAsTorchDoes) {
  for (const MuonTrace& trace : kMuonTraces) {
    SCOPED_TRACE(trace.options);
    // LibTorch alone has products in bfloat16.
    if (has_bfloat16_products(trace)) continue;
    expect_near(muon_steps<double>(trace, nullptr), trace.matrix, 1e-12);
    expect_near(muon_steps<float>(trace, nullptr), trace.matrix, 1e-6);
  }
}

/// A matrix of the numbers of a generator.
template <class T>
std::vector<T> drawn(std::int64_t rows, std::int64_t cols) {
  std::vector<T> x(static_cast<std::size_t>(rows * cols));
  Random random(7);
  for (T& value : x) value = static_cast<T>(random.uniform(-1, 1));
  return x;
}

template <class T>
std::vector<T> orthogonalized(std::vector<T> x, std::int64_t rows, std::int64_t cols,
                              const NewtonSchulz& how, SimdPath simd = best_simd_path()) {
  orthogonalize({.block = block_of(std::span(x)), .rows = rows, .cols = cols}, how, simd);
  return x;
}

constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{1, 1},  {1, 9},   {9, 1},
                                                             {4, 32}, {33, 70}, {70, 33}};

TEST(Orthogonalize, BringsAllRowsNearUnitLengthAndRightAngles) {
  for (const auto& [rows, cols] : kShapes) {
    const std::vector<double> x =
        orthogonalized(drawn<double>(rows, cols), rows, cols, {.num_steps = 8});
    // Of a wide matrix the rows, of a tall one the columns.
    const bool is_wide = rows <= cols;
    const std::int64_t count = is_wide ? rows : cols;
    const std::int64_t length = is_wide ? cols : rows;
    const auto at = [&](std::int64_t vector, std::int64_t i) {
      return x[static_cast<std::size_t>(is_wide ? vector * cols + i : i * cols + vector)];
    };
    for (std::int64_t a = 0; a < count; ++a) {
      for (std::int64_t b = 0; b <= a; ++b) {
        double product = 0.0;
        for (std::int64_t i = 0; i < length; ++i) product += at(a, i) * at(b, i);
        // Random rows have products of up to 0.6 in these shapes.
        EXPECT_NEAR(product, a == b ? 1.0 : 0.0, a == b ? 0.55 : 0.3) << rows << " x " << cols;
      }
    }
  }
}

TEST(Orthogonalize, GivesTheSameBitsOnEveryPath) {
  for (const auto& [rows, cols] : kShapes) {
    const std::vector<float> x = drawn<float>(rows, cols);
    const auto expected = orthogonalized(x, rows, cols, {}, SimdPath::kBaseline);
    for (const SimdPath path : available_simd_paths()) {
      EXPECT_EQ(orthogonalized(x, rows, cols, {}, path), expected) << name_of(path);
    }
  }
}

TEST(Orthogonalize, LeavesZerosAndEmptyMatricesAlone) {
  EXPECT_EQ(orthogonalized(std::vector<float>(6), 2, 3, {}), std::vector<float>(6));
  EXPECT_TRUE(orthogonalized(std::vector<float>(), 0, 3, {}).empty());
}

TEST(Orthogonalize, RefusesWhatItCannotDo) {
  std::vector<float> x(6);
  const Block block = block_of(std::span(x));
  EXPECT_THROW(orthogonalize({.block = block, .rows = 4, .cols = 2}, {}), std::logic_error);
  EXPECT_THROW(orthogonalize({.block = block, .rows = 2, .cols = 3}, {.in_bfloat16 = true}),
               ConfigError);
}

TEST(Muon, RefusesSegmentsThatAreNoWholeMatrix) {
  std::vector<float> x(6), momentum(6), gradient(6);
  InlineStream stream;
  const auto muon = make_optimizer("muon");
  for (const std::int64_t rows : {0, 4}) {
    BlockUpdate update{.parameters = block_of(std::span(x)), .states = {momentum.data()}};
    update.segments = {{.numel = 6, .gradient = block_of(std::span(gradient)), .rows = rows}};
    EXPECT_THROW(enqueue_update(stream, *muon, update), std::logic_error) << rows;
  }
}

TEST(Muon, ScalesTheStepAndNotItsWeightDecay) {
  const auto moved_by = [](double step_scale, double weight_decay) {
    std::vector<double> x{1, 2, 3, 4}, momentum(4), gradient{1, 0, 0, 1};
    InlineStream stream;
    BlockUpdate update{.parameters = block_of(std::span(x)), .states = {momentum.data()}};
    update.lr = 0.5;
    update.step_scale = step_scale;
    update.segments = {{.numel = 4,
                        .gradient = block_of(std::span(gradient)),
                        .weight_decay = weight_decay,
                        .rows = 2}};
    enqueue_update(stream, *make_optimizer("muon"), update);
    return x[0] - 1.0;
  };
  const double plain = moved_by(1.0, 0.0);
  EXPECT_LT(plain, 0.0);
  EXPECT_NEAR(moved_by(3.0, 0.0), 3.0 * plain, 1e-12);
  EXPECT_NEAR(moved_by(3.0, 0.25), 3.0 * plain - 0.5 * 0.25, 1e-12);
}

TEST(Muon, OnlyMixesWhereThereIsNoGradientAndInStepsThatAreLeftOut) {
  std::vector<float> x{1, 2, 3, 4}, momentum(4, 7), gradient(4, 1);
  std::vector<float> other{5, 6, 7, 8};
  InlineStream stream;
  const auto muon = make_optimizer("muon");
  for (const bool left_out : {false, true}) {
    const GradientDecision decision{.factor = 1.0, .apply = left_out ? 0 : 1};
    BlockUpdate update{.parameters = block_of(std::span(x)),
                       .states = {momentum.data()},
                       .lr = 0.1,
                       .decision = &decision,
                       .intake = {.keep = 0.5, .inboxes = {{block_of(std::span(other)), 0.5}}}};
    update.segments = {{.numel = 4, .rows = 2}};
    if (left_out) update.segments.front().gradient = block_of(std::span(gradient));
    enqueue_update(stream, *muon, update);
    EXPECT_EQ(momentum, std::vector<float>(4, 7));
  }
  EXPECT_EQ(x, (std::vector<float>{4, 5, 6, 7}));
}

}  // namespace
}  // namespace gossamer
