#pragma once
// The precision in which a model computes and keeps its parameters, and the scale of losses in
// float16. Not thread safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/autocast_mode.h>

#include "base/state_visitor.hpp"
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

/// Scales the loss before a backward pass in float16. Without the scale small gradients would
/// become 0. Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2. The
/// scale changes during the run by the rules of torch.amp.GradScaler.
///
/// Protocol: multiply each loss by scale(), and tell update() after each step whether the step was
/// skipped. All ranks skip the same steps, so they have the same scale.
class LossScaler {
 public:
  /// A power of two.
  [[nodiscard]] double scale() const { return scale_; }
  /// Halves the scale if a gradient was not finite; doubles it after kInterval good steps.
  void update(bool skipped);
  void visit(StateVisitor& visitor);

  static constexpr double kFirst = 65536.0;
  static constexpr std::int64_t kInterval = 2000;

 private:
  double scale_ = kFirst;
  /// Steps since the last change.
  std::int64_t num_good_ = 0;
};

}  // namespace gossamer::apps
