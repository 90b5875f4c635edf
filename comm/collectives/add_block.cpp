#include "comm/collectives/add_block.hpp"

#include <cstring>
#include <stdexcept>

namespace gossamer {
namespace {

template <class T>
void add_elements(const Block& sum, const ConstBlock& term) {
  const std::span<T> out = sum.as<T>();
  const T* in = term.as<T>().data();
  T* to = out.data();
  for (std::size_t i = 0; i < out.size(); ++i) to[i] += in[i];
}

}  // namespace

void add_block(const Block& sum, const ConstBlock& term) {
  switch (sum.dtype) {
    case DType::kFloat32:
      return add_elements<float>(sum, term);
    case DType::kFloat64:
      return add_elements<double>(sum, term);
    case DType::kInt64:
      return add_elements<std::int64_t>(sum, term);
    case DType::kBFloat16:
    case DType::kUInt8:
      break;
  }
  throw std::logic_error("add_block: an element type that cannot be summed");
}

void copy_block(const ConstBlock& from, const Block& to) {
  if (from.bytes() > 0 && from.data != to.data) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
  }
}

}  // namespace gossamer
