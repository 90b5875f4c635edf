#pragma once
// The precision in which a model computes and keeps its parameters. Not thread safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/autocast_mode.h>

#include "base/types.hpp"

namespace torch::nn {
class Module;
}

namespace gossamer::apps {

enum class Precision : std::uint8_t {
  kFloat32,
  /// LibTorch's autocast picks the operations that compute in bfloat16. Parameters are float32.
  kBf16,
  /// Like kBf16, with float16. Gradients of small losses would become 0, so the loss is scaled (see
  /// LossScaler).
  kFp16,
  /// Like kBf16, and matrices are bfloat16 parameters with float32 master copies.
  kBf16Parameters,
};

/// `float32`, `bf16`, `fp16`, `bf16_parameters`.
std::vector<std::string> precision_names();
/// Throws ConfigError for an unknown name.
Precision precision(std::string_view name);

/// Gives a model's parameters the types of `precision`. Under kBf16Parameters all parameters of two
/// or more dimensions become bfloat16. Biases and the parameters of normalisation layers stay
/// float32: they are few, so rounding them would save little memory.
void set_parameter_types(torch::nn::Module& model, Precision precision);

/// While this object lives, LibTorch computes in this thread and on devices of this type with
/// `precision`; kFloat32 changes nothing. The destructor restores the former settings.
class AutocastScope {
 public:
  AutocastScope(Device device, Precision precision);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType type_;
  bool on_;
  bool was_on_ = false;
  at::ScalarType dtype_before_ = at::kFloat;
};

}  // namespace gossamer::apps
