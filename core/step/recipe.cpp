#include "core/step/recipe.hpp"

#include <utility>
#include <vector>

#include "base/text.hpp"

namespace gossamer {
namespace {

std::vector<std::int64_t> numels_of(std::span<const ParameterInfo> parameters) {
  std::vector<std::int64_t> numels;
  for (const ParameterInfo& info : parameters) numels.push_back(info.numel());
  return numels;
}

}  // namespace

std::string why_no_recipe(const AlgorithmChoice& algorithm, const AlgorithmSetting& setting,
                          const GradientOptions& gradients, bool has_shards) {
  if (algorithm.entry().equal_models == EqualModels::kAfterEveryStep) {
    return concat(algorithm.name(), " updates with the mean gradient");
  }
  if (setting.num_ranks == 1) return "a single rank has all gradients";
  if (!algorithm.takes_recipe()) {
    const std::string& given = algorithm.given();
    return concat("no rule has been found for the algorithm ", algorithm.name(),
                  given.empty() ? "" : concat(" {", given, "}"));
  }
  if (has_shards) return "nothing was measured for sharded models";
  if (gradients.recipe == Recipe::kMeasured) return "";
  if (setting.has_external_optimizer || setting.optimizer == nullptr ||
      setting.optimizer->gradient_use() == GradientUse::kUnknown) {
    return "no rule has been found for the optimizer";
  }
  if (setting.optimizer->gradient_use() == GradientUse::kLinear &&
      gradients.clip_mode == ClipMode::kNone) {
    return "the optimizer's steps are linear in the gradients, which are not clipped";
  }
  return "";
}

RecipeControl::RecipeControl(Recipe recipe, Stream& stream,
                             std::span<const ParameterInfo> parameters)
    : caller_applies_(recipe == Recipe::kMeasured) {
  if (recipe != Recipe::kOwn) noise_.emplace(stream, numels_of(parameters));
}

void RecipeControl::set_way(const std::string& reason, std::string_view algorithm,
                            const Logger& logger) {
  if (!noise_) return;
  is_active_ = reason.empty();
  std::string line =
      is_active_ ? concat("recipe allreduce: every ", GradientNoise::kEvery,
                          " steps the ranks measure how ",
                          "much longer their gradients are than the mean, and ", algorithm,
                          " multiplies rate and norm by it")
                 : concat("recipe allreduce: rate and norm stay as they are, because ", reason);
  if (line != told_) logger.info(line);
  told_ = std::move(line);
}

void RecipeControl::take_gradients(std::int64_t step, const Bucket& bucket) {
  if (!is_active_ || !GradientNoise::is_due(step)) return;
  if (std::exchange(sampled_step_, step) != step) noise_->begin(step);
  for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
    const ConstBlock gradient = bucket.gradient(entry);
    if (gradient.data == nullptr) continue;
    noise_->add(bucket.spec().entries[static_cast<std::size_t>(entry)].parameter, gradient);
  }
}

void RecipeControl::end_step(std::int64_t step, Communicator& communicator) {
  if (sampled_step_ == step) noise_->start(communicator);
  if (is_active_ && GradientNoise::takes_result(step)) noise_->finish();
}

void RecipeControl::drop() {
  sampled_step_ = -1;
  if (noise_) noise_->drop();
}

double RecipeControl::rate_factor(const Optimizer& optimizer) const {
  if (!is_active_ || caller_applies_ || optimizer.gradient_use() != GradientUse::kNormalized)
    return 1.0;
  return noise_->ratio(optimizer.cycle());
}

void RecipeControl::visit(StateVisitor& visitor) {
  if (!noise_) return;
  noise_->drain();
  noise_->visit(visitor);
}

}  // namespace gossamer
