#include "apps/train/loss_scaler.hpp"

#include <algorithm>

namespace gossamer::apps {
namespace {

constexpr double kLargest = 16777216.0 * 65536.0;

}  // namespace

void LossScaler::update(bool skipped) {
  if (skipped) {
    // Below 1 a larger gradient would not fit into float32 either.
    scale_ = std::max(scale_ / 2.0, 1.0);
    num_good_ = 0;
  } else if (++num_good_ == kInterval) {
    scale_ = std::min(2.0 * scale_, kLargest);
    num_good_ = 0;
  }
}

void LossScaler::visit(StateVisitor& visitor) {
  visitor.number("scaler/scale", scale_);
  visitor.number("scaler/num_good", num_good_);
}

}  // namespace gossamer::apps
