// Batches, their augmentation, and the thread that makes them ahead of time.

#include "apps/train/batches.hpp"

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/data/array_samples.hpp"
#include "apps/train/batch_loader.hpp"
#include "base/error.hpp"

namespace gossamer::apps {
namespace {

/// Images of `channels` x 2 x 3 pixels that count up; image i has the label i % 4.
std::shared_ptr<const ArraySamples> counting_images(std::int64_t size, std::int64_t channels = 1) {
  std::vector<float> values(static_cast<std::size_t>(size * channels * 6));
  std::iota(values.begin(), values.end(), 1.0F);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < size; ++i) labels.push_back(i % 4);
  return std::make_shared<const ArraySamples>(
      SampleShape{.height = 2, .width = 3, .num_outputs = 4, .channels = channels}, size,
      ArraySamples::Content{.values = std::move(values), .labels = std::move(labels)});
}

TEST(MakeBatch, TakesTheSamplesThatAreAskedFor) {
  const auto images = counting_images(10, 2);
  const std::vector<std::int64_t> indices = {3, 5};
  const Batch batch = make_batch(*images, indices);
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<std::int64_t>{2, 2, 2, 3}));
  EXPECT_EQ(batch.inputs.scalar_type(), torch::kFloat32);
  EXPECT_EQ(batch.inputs[0][0][0][0].item<float>(), 37.0F);
  EXPECT_EQ(batch.inputs[1][1][1][2].item<float>(), 72.0F);
  EXPECT_TRUE(torch::equal(batch.targets, torch::tensor({3, 1}, torch::kInt64)));
}

TEST(Augment, MovesAndMirrorsWholeImages) {
  const auto images = counting_images(400, 2);
  std::vector<std::int64_t> indices(400);
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  const torch::Tensor before = make_batch(*images, indices).inputs;
  torch::Tensor after = before.clone();
  Random random(3);
  constexpr float kBackground = -1.0F;
  augment(after, {.crop = 1, .flip = true}, kBackground, random);
  int mirrored = 0;
  int moved = 0;
  for (std::int64_t i = 0; i < 400; ++i) {
    // One of 18 images: 9 shifts, mirrored or not, the same for both channels.
    bool found = false;
    for (int flip = 0; flip < 2 && !found; ++flip) {
      for (std::int64_t dy = -1; dy <= 1 && !found; ++dy) {
        for (std::int64_t dx = -1; dx <= 1 && !found; ++dx) {
          torch::Tensor expected = torch::constant_pad_nd(before[i], {1, 1, 1, 1}, kBackground);
          expected = expected.slice(1, 1 - dy, 3 - dy).slice(2, 1 - dx, 4 - dx);
          if (flip == 1) expected = expected.flip({2});
          found = torch::equal(expected, after[i]);
          if (!found) continue;
          mirrored += flip;
          moved += dy != 0 || dx != 0 ? 1 : 0;
        }
      }
    }
    EXPECT_TRUE(found) << i;
  }
  EXPECT_NEAR(mirrored, 200, 50);
  EXPECT_NEAR(moved, 400 * 8 / 9, 50);
}

// torchvision's RandomCrop(padding) before ToTensor and Normalize gives the same.
TEST(BatchLoader, MovesBlackIntoImagesOfPixels) {
  BatchLoader loader(
      {.samples = std::make_shared<const ArraySamples>(
           SampleShape{.height = 1, .width = 1, .num_outputs = 1}, 1,
           ArraySamples::Content{.values = std::vector<std::uint8_t>{255}, .labels = {0}}),
       .dealer = Dealer({.labels = {0}, .seed = 7}, {{.num_ranks = 1}}),
       .augmentation = {.crop = 1},
       .seed = 7});
  int num_moved = 0;
  for (std::int64_t number = 0; number < 20; ++number) {
    const auto pixel = loader.take(number).inputs.item<float>();
    EXPECT_TRUE(pixel == 1.0F || pixel == -1.0F) << pixel;
    num_moved += pixel == -1.0F ? 1 : 0;
  }
  EXPECT_GT(num_moved, 0);
}

BatchLoader::Setup setup_of(std::int64_t prefetch, bool changed) {
  const auto images = counting_images(100);
  return {.samples = images,
          .dealer = Dealer({.labels = std::vector<std::int64_t>(100), .seed = 7},
                           {{.num_ranks = 2, .batch_size = 8}}),
          .augmentation = {.crop = changed ? 1 : 0, .flip = changed},
          .seed = 7,
          .rank = 1,
          .prefetch = prefetch};
}

TEST(BatchLoader, GivesTheSameBatchesWithAndWithoutAThread) {
  for (const bool changed : {false, true}) {
    BatchLoader plain(setup_of(0, changed));
    BatchLoader ahead(setup_of(3, changed));
    EXPECT_EQ(ahead.batch_size(), 8);
    EXPECT_EQ(ahead.batches_per_epoch(), 6);
    for (std::int64_t number = 0; number < 20; ++number) {
      const Batch expected = plain.take(number);
      const Batch batch = ahead.take(number);
      EXPECT_TRUE(torch::equal(batch.inputs, expected.inputs)) << number;
      EXPECT_TRUE(torch::equal(batch.targets, expected.targets)) << number;
    }
    // A run that is resumed begins with any batch.
    BatchLoader later(setup_of(2, changed));
    BatchLoader again(setup_of(0, changed));
    for (std::int64_t number = 0; number < 13; ++number) static_cast<void>(again.take(number));
    EXPECT_TRUE(torch::equal(later.take(13).inputs, again.take(13).inputs));
    EXPECT_THROW(static_cast<void>(later.take(20)), std::logic_error);
  }
}

class Broken : public Samples {
 public:
  Broken()
      : Samples(SampleKind::kArrays, TargetKind::kClasses,
                {.height = 1, .width = 1, .num_outputs = 1}, 50) {}
  void copy_array(std::int64_t /*index*/, std::span<float> /*out*/) const override {
    throw DataError("file: byte 7: broken");
  }
};

TEST(BatchLoader, ThrowsTheErrorsOfItsThread) {
  for (const std::int64_t prefetch : {0, 2}) {
    BatchLoader::Setup setup = setup_of(prefetch, false);
    setup.samples = std::make_shared<const Broken>();
    BatchLoader loader(std::move(setup));
    EXPECT_THROW(static_cast<void>(loader.take(0)), DataError);
  }
}

}  // namespace
}  // namespace gossamer::apps
