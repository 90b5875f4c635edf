#pragma once
// With what precision a model computes.

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
  /// LibTorch's autocast computes in bfloat16 where it says so; parameters are float32.
  kBf16,
  /// The same, and matrices are bfloat16 parameters with float32 master copies.
  kBf16Parameters,
};

/// `float32`, `bf16`, `bf16_parameters`.
std::vector<std::string> precision_names();
/// Throws ConfigError for an unknown name.
Precision precision(std::string_view name);

/// Makes a model's parameters what `precision` wants: under kBf16Parameters those of two dimensions
/// or more become bfloat16. Biases and the parameters of normalisations stay: they are few, and
/// what rounding would do to them is not worth the bytes.
void set_parameter_types(torch::nn::Module& model, Precision precision);

/// While it lives, LibTorch computes in this thread as `precision` wants.
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
