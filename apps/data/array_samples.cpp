#include "apps/data/array_samples.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace gossamer::apps {
namespace {

/// The numbers of sample `index`, of `count` numbers each.
template <class Number>
std::span<const Number> part(const std::vector<Number>& all, std::int64_t index,
                             std::size_t count) {
  return std::span(all).subspan(static_cast<std::size_t>(index) * count, count);
}

float number_of(std::uint8_t pixel) { return static_cast<float>(pixel) / 127.5F - 1.0F; }

}  // namespace

ArraySamples::ArraySamples(const SampleShape& shape, std::int64_t size, Content content)
    : Samples(SampleKind::kArrays,
              content.numbers.empty() ? TargetKind::kClasses : TargetKind::kNumbers, shape, size),
      content_(std::move(content)) {
  const auto num_values =
      std::visit([](const auto& values) { return std::ssize(values); }, content_.values);
  const bool has_targets = target() == TargetKind::kClasses
                               ? std::ssize(content_.labels) == size
                               : std::ssize(content_.numbers) == size * shape.num_outputs;
  if (num_values != size * shape.numel() || !has_targets) {
    throw std::logic_error("ArraySamples: the sizes do not fit together");
  }
}

float ArraySamples::background() const { return pixels().empty() ? 0.0F : number_of(0); }

void ArraySamples::copy_array(std::int64_t index, std::span<float> out) const {
  if (const auto* numbers = std::get_if<std::vector<float>>(&content_.values)) {
    std::ranges::copy(part(*numbers, index, out.size()), out.begin());
    return;
  }
  const auto& pixels = std::get<std::vector<std::uint8_t>>(content_.values);
  std::ranges::transform(part(pixels, index, out.size()), out.begin(), number_of);
}

void ArraySamples::copy_numbers(std::int64_t index, std::span<float> out) const {
  std::ranges::copy(part(content_.numbers, index, out.size()), out.begin());
}

std::span<const std::uint8_t> ArraySamples::pixels() const {
  const auto* pixels = std::get_if<std::vector<std::uint8_t>>(&content_.values);
  return pixels == nullptr ? std::span<const std::uint8_t>() : *pixels;
}

}  // namespace gossamer::apps
