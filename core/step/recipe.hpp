#pragma once
// What becomes of a learning rate and a largest norm that were chosen for all-reduce, where each
// rank updates with its own gradient. docs/measurements/recipes.md has the measurements behind it.
//
//   1. The gradient of one rank is longer than the mean gradient, by the ratio of GradientNoise.
//   2. An optimizer of the Adam family, or `muon`, makes steps of the rate's length, of which noise
//      leaves a part that is shorter by this ratio. So the run multiplies the rate by it, except in
//      weight decay.
//   3. The steps of `sgd` are linear in the gradient, and its rate stays.
//   4. The largest norm is multiplied by the ratio under every optimizer.
//
// Example with three ranks and a recipe of rate 0.001 and norm 1: the ranks measure that their
// gradients are 1.5 times as long as the mean. The next ten steps take rate 0.0015 and norm 1.5.
//
// The rule holds for the ways (AlgorithmChoice::takes_recipe()) and optimizers (GradientUse) with
// which it has gained. For all others nothing changes, and one line says why.
//
// Protocol: set_way() before the first step, and whenever the algorithm changes. In every step:
// take_gradients() for each bucket before its update, then end_step(). After a PeerLost call
// drop(). Not thread safe. Errors: CommError from end_step() and visit().

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "base/state_visitor.hpp"
#include "comm/communicator.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/bucket/bucket.hpp"
#include "core/bucket/gradient_policy.hpp"
#include "core/step/gradient_noise.hpp"

namespace gossamer {

/// Says why the measured rule says nothing about a run; empty: it holds. `has_shards`: the
/// parameters are shards of a model. Under Recipe::kMeasured the caller answers for the optimizer.
std::string why_no_recipe(const AlgorithmChoice& algorithm, const AlgorithmSetting& setting,
                          const GradientOptions& gradients, bool has_shards);

class RecipeControl {
 public:
  /// Under Recipe::kOwn the object does nothing. `stream` must outlive this object.
  RecipeControl(Recipe recipe, Stream& stream, std::span<const ParameterInfo> parameters);

  /// Goes on with a way of which why_no_recipe() says `reason`, and tells the logger.
  void set_way(const std::string& reason, std::string_view algorithm, const Logger& logger);

  /// Takes a sample of the bucket's gradients, if one is due. `step` counts from 0.
  void take_gradients(std::int64_t step, const Bucket& bucket);
  /// Collective in the steps of GradientNoise::is_due().
  void end_step(std::int64_t step, Communicator& communicator);
  /// Forgets the sample under way. Until the next sample, end_step() does nothing.
  void drop();

  /// The measured ratio; 1 where the rule does not hold.
  [[nodiscard]] double ratio() const { return is_active_ ? noise_->ratio() : 1.0; }
  /// The factor for the largest norm to which the engine clips.
  [[nodiscard]] double norm_factor() const { return caller_applies_ ? 1.0 : ratio(); }
  /// The factor for the rate of an optimizer, except in weight decay.
  [[nodiscard]] double rate_factor(const Optimizer& optimizer) const;

  void visit(StateVisitor& visitor);

 private:
  std::optional<GradientNoise> noise_;
  bool caller_applies_;
  bool is_active_ = false;
  /// The step of the last sample; negative: there is none.
  std::int64_t sampled_step_ = -1;
  std::string told_;
};

}  // namespace gossamer
