#pragma once
// Single elements of blocks in host memory, as double.

#include <cstdint>

#include "base/bfloat16.hpp"
#include "base/types.hpp"

namespace gossamer {

/// The block is float32, float64 or bfloat16.
inline double host_value(const ConstBlock& block, std::int64_t place) {
  const auto index = static_cast<std::size_t>(place);
  if (block.dtype == DType::kBFloat16) {
    return static_cast<double>(widened(block.as<BFloat16>()[index]));
  }
  return block.dtype == DType::kFloat64 ? block.as<double>()[index]
                                        : static_cast<double>(block.as<float>()[index]);
}

/// The block is float32 or float64.
inline void set_host_value(const Block& block, std::int64_t place, double value) {
  const auto index = static_cast<std::size_t>(place);
  if (block.dtype == DType::kFloat64) {
    block.as<double>()[index] = value;
  } else {
    block.as<float>()[index] = static_cast<float>(value);
  }
}

}  // namespace gossamer
