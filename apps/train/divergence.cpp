#include "apps/train/divergence.hpp"

#include <cmath>
#include <utility>

#include "base/text.hpp"

namespace gossamer::apps {
namespace {

/// Three digits are enough in a sentence.
std::string rounded(double value) { return with_digits(value, 3, std::chars_format::general); }

}  // namespace

void Divergence::find(std::int64_t step, std::string what) {
  if (has_diverged()) return;
  step_ = step;
  what_ = concat("the run has diverged: after step ", step, " ", std::move(what));
}

void Divergence::begin(double loss) {
  if (!has_begun() && std::isfinite(loss)) first_loss_ = loss;
}

void Divergence::note_loss(std::int64_t step, double loss) {
  if (!std::isfinite(loss)) {
    if (finite_step_ < 0) finite_step_ = step - 1;
    if (step - finite_step_ < kStepsNotFinite) return;
    return find(step, concat("no loss has been finite for ", step - finite_step_, " steps"));
  }
  finite_step_ = step;
  if (!has_begun()) {
    first_loss_ = loss;
  } else if (loss > kLossGrowth * first_loss_) {
    find(step, concat("the loss is ", rounded(loss), ", and it began with ", rounded(first_loss_)));
  }
}

void Divergence::note_consensus(std::int64_t step, double distance, double norm, int num_ranks) {
  // A distance that is no number comes with a loss that is none.
  if (!(distance > kDrift * std::sqrt(static_cast<double>(num_ranks)) * norm)) return;
  find(step, concat("the consensus distance is ", rounded(distance), ", ", rounded(distance / norm),
                    " times the norm of the mean model: the ranks' models drift apart"));
}

bool Divergence::is_news() { return has_diverged() && !std::exchange(is_told_, true); }

void Divergence::visit(StateVisitor& visitor) { visitor.number("train/first_loss", first_loss_); }

}  // namespace gossamer::apps
