#pragma once
// The element types that the engine trains, with their names in PyTorch and their codes in DLPack.
// Thread safe: the table is constant.

#include <array>
#include <cstdint>

#include <nanobind/ndarray.h>

#include "base/types.hpp"

namespace gossamer::python {

struct TypeName {
  DType type;
  const char* name;
  nanobind::dlpack::dtype_code code;
  std::uint8_t bits;
};
inline constexpr std::array kTypes = {
    TypeName{DType::kFloat32, "float32", nanobind::dlpack::dtype_code::Float, 32},
    TypeName{DType::kFloat64, "float64", nanobind::dlpack::dtype_code::Float, 64},
    TypeName{DType::kBFloat16, "bfloat16", nanobind::dlpack::dtype_code::Bfloat, 16},
};

}  // namespace gossamer::python
