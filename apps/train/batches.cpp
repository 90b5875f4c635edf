#include "apps/train/batches.hpp"

#include <algorithm>
#include <vector>

namespace gossamer::apps {
namespace {

Batch token_batch(const Samples& samples, std::span<const std::int64_t> indices) {
  const std::int64_t width = samples.shape().width;
  const auto count = std::ssize(indices);
  Batch batch{.inputs = torch::empty({count, width}, torch::kInt64),
              .targets = torch::empty({count * width}, torch::kInt64)};
  auto* inputs = batch.inputs.data_ptr<std::int64_t>();
  auto* targets = batch.targets.data_ptr<std::int64_t>();
  std::vector<std::int64_t> window(static_cast<std::size_t>(width + 1));
  for (const std::int64_t index : indices) {
    samples.copy_tokens(index, window);
    inputs = std::copy(window.begin(), window.end() - 1, inputs);
    targets = std::copy(window.begin() + 1, window.end(), targets);
  }
  return batch;
}

/// A [count, ...] tensor of float32, whose rows `copy` fills.
template <class Copy>
torch::Tensor filled(const std::vector<std::int64_t>& shape, std::span<const std::int64_t> indices,
                     const Copy& copy) {
  torch::Tensor values = torch::empty(shape, torch::kFloat32);
  auto* out = values.data_ptr<float>();
  const auto row = static_cast<std::size_t>(values.numel() / values.size(0));
  for (const std::int64_t index : indices) {
    copy(index, std::span(out, row));
    out += row;
  }
  return values;
}

torch::Tensor label_batch(const Samples& samples, std::span<const std::int64_t> indices) {
  torch::Tensor labels = torch::empty({std::ssize(indices)}, torch::kInt64);
  auto* out = labels.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    *out++ = samples.labels()[static_cast<std::size_t>(index)];
  }
  return labels;
}

struct Shift {
  std::int64_t dy = 0;
  std::int64_t dx = 0;
  float background = 0.0F;
};

/// Moves a [height, width] plane down by dy and right by dx; places that it leaves become
/// background.
void shift(std::span<float> plane, std::int64_t width, const Shift& by,
           std::vector<float>& scratch) {
  const auto [dy, dx, background] = by;
  scratch.assign(plane.begin(), plane.end());
  std::ranges::fill(plane, background);
  const std::int64_t height = std::ssize(plane) / width;
  for (std::int64_t y = std::max<std::int64_t>(dy, 0); y < std::min(height, height + dy); ++y) {
    const auto from = scratch.begin() + (y - dy) * width + std::max<std::int64_t>(-dx, 0);
    const auto to = plane.begin() + y * width + std::max<std::int64_t>(dx, 0);
    const std::int64_t count = width - std::abs(dx);
    if (count > 0) std::copy_n(from, count, to);
  }
}

}  // namespace

Batch make_batch(const Samples& samples, std::span<const std::int64_t> indices) {
  if (samples.kind() == SampleKind::kTokens) return token_batch(samples, indices);
  const SampleShape& shape = samples.shape();
  const auto count = std::ssize(indices);
  return {.inputs = filled(
              {count, shape.channels, shape.height, shape.width}, indices,
              [&](std::int64_t index, std::span<float> out) { samples.copy_array(index, out); }),
          .targets = samples.target() == TargetKind::kClasses
                         ? label_batch(samples, indices)
                         : filled({count, shape.num_outputs}, indices,
                                  [&](std::int64_t index, std::span<float> out) {
                                    samples.copy_numbers(index, out);
                                  })};
}

void augment(torch::Tensor& images, const Augmentation& augmentation, float background,
             Random& random) {
  if (!augmentation.enabled()) return;
  const std::int64_t channels = images.size(1);
  const std::int64_t width = images.size(3);
  const auto plane = static_cast<std::size_t>(images.size(2) * width);
  auto* values = images.data_ptr<float>();
  std::vector<float> scratch;
  const auto draw_shift = [&] {
    return random.below(2 * augmentation.crop + 1) - augmentation.crop;
  };
  for (std::int64_t i = 0; i < images.size(0); ++i) {
    const std::int64_t dy = draw_shift();
    const std::int64_t dx = draw_shift();
    const bool mirrored = augmentation.flip && random.below(2) == 1;
    for (std::int64_t c = 0; c < channels; ++c, values += plane) {
      const std::span<float> pixels(values, plane);
      if (dy != 0 || dx != 0) shift(pixels, width, {dy, dx, background}, scratch);
      for (auto row = pixels.begin(); mirrored && row != pixels.end(); row += width) {
        std::reverse(row, row + width);
      }
    }
  }
}

}  // namespace gossamer::apps
