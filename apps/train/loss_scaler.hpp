#pragma once
// Scales the loss before a backward pass in float16. Without the scale small gradients would become
// 0. Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2. The scale
// changes during the run by the rules of torch.amp.GradScaler.
//
// Protocol: multiply each loss by scale(), and tell update() after each step whether the step was
// skipped. All ranks skip the same steps, so they have the same scale. Not thread safe.

#include <cstdint>

#include "base/state_visitor.hpp"

namespace gossamer::apps {

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
