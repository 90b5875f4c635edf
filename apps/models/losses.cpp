#include "apps/models/losses.hpp"

#include <array>
#include <utility>

#include <torch/nn/functional/loss.h>

#include "base/error.hpp"
#include "base/registry.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

namespace functional = torch::nn::functional;

constexpr std::string_view kUsual = "auto";

/// The options of a loss of LibTorch, with the reduction that is asked for.
template <class Options>
Options reduced(bool sum) {
  Options options;
  if (sum) {
    options.reduction(torch::kSum);
  } else {
    options.reduction(torch::kMean);
  }
  return options;
}

/// LibTorch sums over all numbers of an answer.
torch::Tensor over_numbers(const torch::Tensor& loss, const torch::Tensor& targets, bool sum) {
  return sum ? loss / targets.size(1) : loss;
}

torch::Tensor cross_entropy(const torch::Tensor& outputs, const torch::Tensor& targets, bool sum) {
  return functional::cross_entropy(outputs, targets,
                                   reduced<functional::CrossEntropyFuncOptions>(sum));
}

torch::Tensor nll(const torch::Tensor& outputs, const torch::Tensor& targets, bool sum) {
  return functional::nll_loss(outputs, targets, reduced<functional::NLLLossFuncOptions>(sum));
}

torch::Tensor mse(const torch::Tensor& outputs, const torch::Tensor& targets, bool sum) {
  return over_numbers(
      functional::mse_loss(outputs, targets, reduced<functional::MSELossFuncOptions>(sum)), targets,
      sum);
}

torch::Tensor l1(const torch::Tensor& outputs, const torch::Tensor& targets, bool sum) {
  return over_numbers(
      functional::l1_loss(outputs, targets, reduced<functional::L1LossFuncOptions>(sum)), targets,
      sum);
}

torch::Tensor smooth_l1(const torch::Tensor& outputs, const torch::Tensor& targets, bool sum) {
  return over_numbers(functional::smooth_l1_loss(outputs, targets,
                                                 reduced<functional::SmoothL1LossFuncOptions>(sum)),
                      targets, sum);
}

torch::Tensor binary_cross_entropy(const torch::Tensor& outputs, const torch::Tensor& targets,
                                   bool sum) {
  return over_numbers(
      functional::binary_cross_entropy_with_logits(
          outputs, targets, reduced<functional::BinaryCrossEntropyWithLogitsFuncOptions>(sum)),
      targets, sum);
}

torch::Tensor num_right_classes(const torch::Tensor& outputs, const torch::Tensor& targets) {
  return outputs.argmax(1).eq(targets).sum();
}

torch::Tensor num_right_signs(const torch::Tensor& outputs, const torch::Tensor& targets) {
  return outputs.gt(0).eq(targets.gt(0.5)).to(torch::kFloat32).mean(1).sum();
}

constexpr std::array kLosses = {
    LossEntry{"cross_entropy", "classes; outputs are logits", TargetKind::kClasses, cross_entropy,
              num_right_classes},
    LossEntry{"nll", "classes; outputs are logarithms of probabilities", TargetKind::kClasses, nll,
              num_right_classes},
    LossEntry{"mse", "numbers; squared differences", TargetKind::kNumbers, mse, nullptr},
    LossEntry{"l1", "numbers; absolute differences", TargetKind::kNumbers, l1, nullptr},
    LossEntry{"smooth_l1", "numbers; squared differences below 1, absolute ones above",
              TargetKind::kNumbers, smooth_l1, nullptr},
    LossEntry{"binary_cross_entropy", "numbers from 0 to 1, one for each label; outputs are logits",
              TargetKind::kNumbers, binary_cross_entropy, num_right_signs,
              /*needs_fractions=*/true},
};

}  // namespace

std::span<const LossEntry> loss_table() { return kLosses; }

std::vector<std::string> loss_names() {
  std::vector<std::string> names = names_of(kLosses);
  names.insert(names.begin(), std::string(kUsual));
  return names;
}

const LossEntry& loss_for(std::string_view name, TargetKind targets) {
  if (name == kUsual) name = targets == TargetKind::kClasses ? "cross_entropy" : "mse";
  const LossEntry& entry = row_of(kLosses, "loss", name);
  if (entry.takes == targets) return entry;
  std::vector<std::string_view> fitting;
  for (const LossEntry& other : kLosses) {
    if (other.takes == targets) fitting.push_back(other.name);
  }
  throw ConfigError(concat("train.loss: ", name, " does not take ", name_of(targets),
                           ", which the data have as targets, allowed: ", join(fitting, ", ")));
}

void check_targets(const LossEntry& loss, const Dataset& data) {
  if (!loss.needs_fractions) return;
  for (const auto& [samples, name] :
       {std::pair(data.train.get(), "training"), std::pair(data.validation.get(), "validation")}) {
    std::vector<float> numbers(static_cast<std::size_t>(samples->shape().num_outputs));
    for (std::int64_t i = 0; i < samples->size(); ++i) {
      samples->copy_numbers(i, numbers);
      for (const float number : numbers) {
        if (number >= 0.0F && number <= 1.0F) continue;
        throw DataError(concat("the target of ", name, " sample ", i, " is ", number,
                               ", and train.loss: ", loss.name, " needs numbers from 0 to 1"));
      }
    }
  }
}

}  // namespace gossamer::apps
