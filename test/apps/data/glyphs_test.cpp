#include "test/apps/data/array_view.hpp"
#include "test/base/thrown.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "apps/data/dataset.hpp"
#include "apps/data/glyph_font.hpp"
#include "base/error.hpp"

namespace gossamer::apps {
namespace {

ArrayViews load(const std::string& keys, std::uint64_t seed) {
  const Options options = Options::parse(keys);
  ArrayViews data(configure_dataset("glyphs", options)->load(seed));
  options.reject_unknown();
  return data;
}

double mean_of(std::span<const std::uint8_t> pixels) {
  double sum = 0;
  for (const std::uint8_t pixel : pixels) sum += pixel;
  return sum / static_cast<double>(pixels.size());
}

TEST(DatasetRegistry, KnowsAllDataSetsInEitherSpelling) {
  EXPECT_EQ(dataset_names(),
            (std::vector<std::string>{"glyphs", "idx", "text", "cifar10", "tokens", "arrays"}));
  EXPECT_NE(configure_dataset("GLYPHS", Options()), nullptr);
}

TEST(DatasetRegistry, RefusesAnUnknownNameAndSuggestsTheNearest) {
  const std::string what =
      what_of<ConfigError>([] { (void)configure_dataset("glyfs", Options()); });
  EXPECT_TRUE(contains(what, "did you mean glyphs?")) << what;
}

TEST(GlyphFont, StaysInTheUnitSquare) {
  for (std::int64_t digit = 0; digit < kGlyphCount; ++digit) {
    const std::vector<GlyphSegment> segments = glyph_segments(digit);
    EXPECT_GE(segments.size(), 2U);
    EXPECT_LE(segments.size(), 64U);
    for (const GlyphSegment& segment : segments) {
      for (const double value : {segment.x0, segment.y0, segment.x1, segment.y1}) {
        EXPECT_GE(value, 0.15);
        EXPECT_LE(value, 0.85);
      }
    }
  }
}

TEST(GlyphFont, RefusesWhatIsNoDigit) {
  EXPECT_THROW(glyph_segments(-1), std::logic_error);
  EXPECT_THROW(glyph_segments(10), std::logic_error);
}

TEST(Glyphs, HasTheDefaultSizes) {
  const ArrayViews data = load("", 1);
  EXPECT_EQ(data.train.size, 8192);
  EXPECT_EQ(data.validation.size, 2048);
  for (const ArrayView* images : {&data.train, &data.validation}) {
    EXPECT_EQ(images->height, 28);
    EXPECT_EQ(images->width, 28);
    EXPECT_EQ(images->num_outputs, 10);
    EXPECT_EQ(std::ssize(images->labels), images->size);
    EXPECT_EQ(std::ssize(images->values), images->size * 784);
  }
}

TEST(Glyphs, DependsOnTheSeedAlone) {
  const ArrayViews a = load("train_size: 300, val_size: 100", 7);
  const ArrayViews b = load("train_size: 300, val_size: 100", 7);
  EXPECT_EQ(a.train.values, b.train.values);
  EXPECT_EQ(a.train.labels, b.train.labels);
  EXPECT_EQ(a.validation.values, b.validation.values);
  EXPECT_EQ(a.validation.labels, b.validation.labels);
}

TEST(Glyphs, LargerSetBeginsWithTheSmallerOne) {
  const ArrayViews large = load("train_size: 205, val_size: 55", 3);
  const ArrayViews small = load("train_size: 37, val_size: 13", 3);
  EXPECT_TRUE(
      std::equal(small.train.values.begin(), small.train.values.end(), large.train.values.begin()));
  EXPECT_TRUE(
      std::equal(small.train.labels.begin(), small.train.labels.end(), large.train.labels.begin()));
  EXPECT_TRUE(std::equal(small.validation.values.begin(), small.validation.values.end(),
                         large.validation.values.begin()));
  EXPECT_TRUE(std::equal(small.validation.labels.begin(), small.validation.labels.end(),
                         large.validation.labels.begin()));
}

TEST(Glyphs, DiffersBetweenSeedsAndBetweenSplits) {
  const ArrayViews a = load("train_size: 100, val_size: 100", 1);
  const ArrayViews b = load("train_size: 100, val_size: 100", 2);
  EXPECT_NE(a.train.labels, b.train.labels);
  EXPECT_NE(a.train.labels, a.validation.labels);
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_FALSE(std::ranges::equal(a.train.sample(i), b.train.sample(i))) << "image " << i;
    EXPECT_FALSE(std::ranges::equal(a.train.sample(i), a.validation.sample(i))) << "image " << i;
  }
}

TEST(Glyphs, HoldsEveryDigitEquallyOftenInNoFixedOrder) {
  const ArrayViews data = load("train_size: 1000, val_size: 1", 5);
  std::array<int, 10> counts{};
  for (const std::int64_t label : data.train.labels) ++counts.at(static_cast<std::size_t>(label));
  for (const int count : counts) EXPECT_EQ(count, 100);
  const std::span<const std::int64_t> labels(data.train.labels);
  EXPECT_FALSE(std::ranges::equal(labels.subspan(0, 10), labels.subspan(10, 10)));
  EXPECT_FALSE(std::ranges::is_sorted(labels.subspan(0, 10)));
}

TEST(Glyphs, WithoutNoiseIsInkOnAnEmptyPage) {
  const ArrayViews data = load("train_size: 500, val_size: 1, noise: 0", 1);
  for (std::int64_t i = 0; i < data.train.size; ++i) {
    const auto image = data.train.sample(i);
    const double mean = mean_of(image) / 255.0;
    EXPECT_GT(mean, 0.02) << "image " << i;
    EXPECT_LT(mean, 0.35) << "image " << i;
    EXPECT_GE(*std::ranges::max_element(image), 200) << "image " << i;
    EXPECT_GT(std::ranges::count(image, std::uint8_t{0}), 784 / 2) << "image " << i;
    const auto grey = std::ranges::count_if(image, [](int pixel) { return pixel % 255 != 0; });
    EXPECT_GT(grey, 20) << "image " << i << " is not anti-aliased";
  }
}

TEST(Glyphs, NoiseHasTheDeviationAskedFor) {
  const ArrayViews clean = load("train_size: 200, val_size: 1, noise: 0", 1);
  const ArrayViews noisy = load("train_size: 200, val_size: 1, noise: 0.1", 1);
  // Below 0 the noise is cut off, so that only half of its square is seen on an empty page.
  double squares = 0;
  double count = 0;
  for (std::size_t i = 0; i < clean.train.values.size(); ++i) {
    if (clean.train.values[i] != 0) continue;
    squares += std::pow(noisy.train.values[i] / 255.0, 2);
    ++count;
  }
  EXPECT_NEAR(std::sqrt(2 * squares / count), 0.1, 0.002);
}

TEST(Glyphs, RefusesKeysOutOfRange) {
  for (const char* keys : {"train_size: 0", "train_size: 10000001", "val_size: 0", "noise: -0.1",
                           "noise: 1.1", "train_sice: 5"}) {
    EXPECT_THROW(load(keys, 1), ConfigError) << keys;
  }
}

}  // namespace
}  // namespace gossamer::apps
