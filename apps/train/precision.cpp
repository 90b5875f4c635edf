#include "apps/train/precision.hpp"

#include <algorithm>
#include <array>

#include <torch/nn/module.h>

#include "base/registry.hpp"

namespace gossamer::apps {
namespace {

constexpr std::array kPrecisions = {
    NamedValue{"float32", Precision::kFloat32},
    NamedValue{"bf16", Precision::kBf16},
    NamedValue{"fp16", Precision::kFp16},
    NamedValue{"bf16_parameters", Precision::kBf16Parameters},
};

constexpr double kLargestScale = 16777216.0 * 65536.0;

}  // namespace

std::vector<std::string> precision_names() { return names_of(kPrecisions); }

Precision precision(std::string_view name) { return row_of(kPrecisions, "precision", name).value; }

void set_parameter_types(torch::nn::Module& model, Precision precision) {
  if (precision != Precision::kBf16Parameters) return;
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : model.parameters()) {
    if (parameter.dim() >= 2) parameter.set_data(parameter.to(torch::kBFloat16));
  }
}

AutocastScope::AutocastScope(Device device, Precision precision)
    : type_(device.type == DeviceType::kCpu ? at::kCPU : at::kCUDA),
      on_(precision != Precision::kFloat32) {
  if (!on_) return;
  was_on_ = at::autocast::is_autocast_enabled(type_);
  dtype_before_ = at::autocast::get_autocast_dtype(type_);
  at::autocast::set_autocast_dtype(type_,
                                   precision == Precision::kFp16 ? at::kHalf : at::kBFloat16);
  at::autocast::set_autocast_enabled(type_, true);
}

AutocastScope::~AutocastScope() {
  if (!on_) return;
  // Casts of parameters that the next step changes.
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, was_on_);
  at::autocast::set_autocast_dtype(type_, dtype_before_);
}

void LossScaler::update(bool skipped) {
  if (skipped) {
    // Below 1 a larger gradient would not fit into float32 either.
    scale_ = std::max(scale_ / 2.0, 1.0);
    num_good_ = 0;
  } else if (++num_good_ == kInterval) {
    scale_ = std::min(2.0 * scale_, kLargestScale);
    num_good_ = 0;
  }
}

void LossScaler::visit(StateVisitor& visitor) {
  visitor.number("scaler/scale", scale_);
  visitor.number("scaler/num_good", num_good_);
}

}  // namespace gossamer::apps
