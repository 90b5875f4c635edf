// The data set `glyphs`: the digits of a stroke font, moved, turned, slanted and drawn with pens of
// different width, with noise on every pixel. An image depends on (seed, split, index) alone. So a
// larger set begins with the images of a smaller one, and validation images never occur in
// training.

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "apps/data/array_samples.hpp"
#include "apps/data/data_options.hpp"
#include "apps/data/dataset.hpp"
#include "apps/data/glyph_font.hpp"
#include "base/random.hpp"

namespace gossamer::apps {

std::unique_ptr<const DatasetEntry::Loader> configure_glyphs(const Options& data);

namespace {

constexpr std::int64_t kSide = 28;
constexpr std::size_t kPixels = static_cast<std::size_t>(kSide * kSide);

enum class Split : std::uint8_t { kTrain = 0, kValidation = 1 };
/// What a stream of random numbers is drawn for; keeps images and labels independent.
enum class GlyphUse : std::uint8_t { kImage = 1, kLabels = 2 };

Random stream(std::uint64_t seed, GlyphUse use, Split split, std::int64_t index) {
  return Random(seed, static_cast<std::uint64_t>(use) << 60U |
                          static_cast<std::uint64_t>(split) << 56U |
                          static_cast<std::uint64_t>(index));
}

using Font = std::array<std::vector<GlyphSegment>, static_cast<std::size_t>(kGlyphCount)>;
using DistanceMap = std::array<float, kPixels>;

/// The transformation of one image: p -> matrix (p - middle of the unit square) + middle of the
/// image + shift, in pixels.
struct Hand {
  double xx;
  double xy;
  double yx;
  double yy;
  double shift_x;
  double shift_y;
  double pen_radius;
};

Hand draw_hand(Random& random) {
  const double turn = random.uniform(-0.30, 0.30);  // radians
  const double slant = random.uniform(-0.25, 0.25);
  const double width = kSide * random.uniform(0.70, 1.20);
  const double height = kSide * random.uniform(0.75, 1.15);
  const double c = std::cos(turn);
  const double s = std::sin(turn);
  return {.xx = c * width,
          .xy = (c * slant - s) * height,
          .yx = s * width,
          .yy = (s * slant + c) * height,
          .shift_x = random.uniform(-2.5, 2.5),
          .shift_y = random.uniform(-2.5, 2.5),
          .pen_radius = random.uniform(0.7, 1.7)};
}

/// The segment in pixels; the middle of the pixel in column x, row y has the coordinates (x, y).
GlyphSegment place(const GlyphSegment& segment, const Hand& hand) {
  constexpr double kMiddle = 0.5 * static_cast<double>(kSide - 1);
  const auto x = [&](double u, double v) {
    return kMiddle + hand.shift_x + hand.xx * (u - 0.5) + hand.xy * (v - 0.5);
  };
  const auto y = [&](double u, double v) {
    return kMiddle + hand.shift_y + hand.yx * (u - 0.5) + hand.yy * (v - 0.5);
  };
  return {.x0 = x(segment.x0, segment.y0),
          .y0 = y(segment.x0, segment.y0),
          .x1 = x(segment.x1, segment.y1),
          .y1 = y(segment.x1, segment.y1)};
}

/// Updates `squares`, the squared distance of every pixel to the nearest stroke, with one segment.
/// Looks only at pixels within `reach` of the segment.
void approach(const GlyphSegment& segment, double reach, DistanceMap& squares) {
  const auto clamp_pixel = [](double value) {
    return static_cast<std::int64_t>(std::clamp(value, 0.0, static_cast<double>(kSide)));
  };
  const auto [left, right] = std::minmax(segment.x0, segment.x1);
  const auto [top, bottom] = std::minmax(segment.y0, segment.y1);
  const std::int64_t first_x = clamp_pixel(std::ceil(left - reach));
  const std::int64_t last_x = clamp_pixel(std::floor(right + reach) + 1);
  const std::int64_t first_y = clamp_pixel(std::ceil(top - reach));
  const std::int64_t last_y = clamp_pixel(std::floor(bottom + reach) + 1);

  const auto x0 = static_cast<float>(segment.x0);
  const auto y0 = static_cast<float>(segment.y0);
  const auto dx = static_cast<float>(segment.x1 - segment.x0);
  const auto dy = static_cast<float>(segment.y1 - segment.y0);
  const float per_square = 1.0F / std::max(dx * dx + dy * dy, 1e-12F);
  for (std::int64_t y = first_y; y < last_y; ++y) {
    float* row = squares.data() + y * kSide;
    const float from_y = static_cast<float>(y) - y0;
    for (std::int64_t x = first_x; x < last_x; ++x) {
      const float from_x = static_cast<float>(x) - x0;
      const float along = std::clamp((from_x * dx + from_y * dy) * per_square, 0.0F, 1.0F);
      const float off_x = from_x - along * dx;
      const float off_y = from_y - along * dy;
      row[x] = std::min(row[x], off_x * off_x + off_y * off_y);
    }
  }
}

/// A random number with mean 0 and variance 1, within +-3.5. It is the sum of four uniform numbers:
/// close enough to a normal distribution here, and many times faster.
float rough_normal(Random& random) {
  const std::uint64_t bits = random.bits();
  const std::uint64_t sum =
      (bits & 0xffffU) + (bits >> 16U & 0xffffU) + (bits >> 32U & 0xffffU) + (bits >> 48U);
  constexpr float kMean = 2.0F * 65535.0F;
  constexpr float kPerDeviation = 1.7320508F / 65536.0F;
  return (static_cast<float>(sum) - kMean) * kPerDeviation;
}

void render(const std::vector<GlyphSegment>& glyph, float noise, Random& random,
            std::span<std::uint8_t> pixels) {
  const Hand hand = draw_hand(random);
  // The edge of a stroke fades over one pixel; half of that pixel is outside the pen's radius.
  const auto reach = static_cast<float>(hand.pen_radius + 0.5);
  DistanceMap squares;
  squares.fill(reach * reach);
  for (const GlyphSegment& segment : glyph) {
    approach(place(segment, hand), static_cast<double>(reach), squares);
  }
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const float ink = std::clamp(reach - std::sqrt(squares[i]), 0.0F, 1.0F);
    const float value = std::clamp(ink + noise * rough_normal(random), 0.0F, 1.0F);
    pixels[i] = static_cast<std::uint8_t>(std::lround(value * 255.0F));
  }
}

/// Draws labels: every run of ten images has every digit once, in a random order of its own.
std::vector<std::int64_t> draw_labels(std::uint64_t seed, Split split, std::int64_t size) {
  std::vector<std::int64_t> labels;
  labels.reserve(static_cast<std::size_t>(size));
  std::array<std::int64_t, static_cast<std::size_t>(kGlyphCount)> digits{};
  for (std::int64_t run = 0; run * kGlyphCount < size; ++run) {
    std::iota(digits.begin(), digits.end(), std::int64_t{0});
    Random random = stream(seed, GlyphUse::kLabels, split, run);
    random.shuffle(std::span<std::int64_t>(digits));
    const std::int64_t count = std::min(kGlyphCount, size - run * kGlyphCount);
    labels.insert(labels.end(), digits.begin(), digits.begin() + count);
  }
  return labels;
}

class Glyphs : public DatasetEntry::Loader {
 public:
  explicit Glyphs(const Options& data)
      : train_size_(data.read(glyphs::kTrainSize)),
        val_size_(data.read(glyphs::kValSize)),
        noise_(data.read(glyphs::kNoise)) {}

  [[nodiscard]] Dataset load(std::uint64_t seed) const override {
    Font font;
    for (std::int64_t digit = 0; digit < kGlyphCount; ++digit) {
      font[static_cast<std::size_t>(digit)] = glyph_segments(digit);
    }
    return {.train = draw(font, seed, Split::kTrain, train_size_),
            .validation = draw(font, seed, Split::kValidation, val_size_)};
  }

 private:
  [[nodiscard]] std::shared_ptr<const Samples> draw(const Font& font, std::uint64_t seed,
                                                    Split split, std::int64_t size) const {
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(size) * kPixels);
    std::vector<std::int64_t> labels = draw_labels(seed, split, size);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      Random random = stream(seed, GlyphUse::kImage, split, static_cast<std::int64_t>(i));
      render(font[static_cast<std::size_t>(labels[i])], static_cast<float>(noise_), random,
             std::span(pixels).subspan(i * kPixels, kPixels));
    }
    return std::make_shared<const ArraySamples>(
        SampleShape{.height = kSide, .width = kSide, .num_outputs = kGlyphCount}, size,
        ArraySamples::Content{.values = std::move(pixels), .labels = std::move(labels)});
  }

  std::int64_t train_size_;
  std::int64_t val_size_;
  /// Standard deviation of the noise on a pixel; full ink is 1.
  double noise_;
};

}  // namespace

std::unique_ptr<const DatasetEntry::Loader> configure_glyphs(const Options& data) {
  return std::make_unique<const Glyphs>(data);
}

}  // namespace gossamer::apps
