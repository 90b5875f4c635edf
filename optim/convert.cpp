#include "optim/convert.hpp"

#include <algorithm>
#include <stdexcept>

#include "base/text.hpp"
#include "optim/cuda/convert.hpp"

namespace gossamer {
namespace {

void convert_now(const Block& to, const ConstBlock& from) {
  if (to.dtype == DType::kBFloat16) {
    std::ranges::transform(from.as<float>(), to.as<BFloat16>().begin(), rounded_to_bfloat16);
  } else {
    std::ranges::transform(from.as<BFloat16>(), to.as<float>().begin(),
                           [](BFloat16 value) { return widened(value); });
  }
}

}  // namespace

void enqueue_convert(Stream& stream, const Block& to, const ConstBlock& from) {
  if (to.numel != from.numel) throw std::logic_error("enqueue_convert: the blocks differ in size");
  if (to.dtype == from.dtype) return stream.copy(to, from);
  const bool rounds = from.dtype == DType::kFloat32 && to.dtype == DType::kBFloat16;
  const bool widens = from.dtype == DType::kBFloat16 && to.dtype == DType::kFloat32;
  if (!rounds && !widens) {
    throw std::logic_error(
        concat("enqueue_convert: from ", name_of(from.dtype), " to ", name_of(to.dtype)));
  }
  if (!stream.on_host()) return cuda_convert(stream, to, from);
  stream.run([to, from] { convert_now(to, from); });
}

}  // namespace gossamer
