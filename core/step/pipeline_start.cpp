// What Pipeline does in its first step: it traces, plans and starts.

#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/algorithms/outer_momentum.hpp"
#include "core/step/pipeline.hpp"

namespace gossamer {

void Pipeline::arrived(std::int64_t parameter) {
  places_[static_cast<std::size_t>(parameter)].is_offered = true;
  planner_.arrived(parameter);
}

std::vector<bool> Pipeline::offered() const {
  std::vector<bool> offered;
  for (const Place& place : places_) offered.push_back(place.is_offered);
  return offered;
}

void Pipeline::forget_offered() {
  for (Place& place : places_) place.is_offered = false;
}

void Pipeline::make_plan() {
  planner_.make_plan(detached_ ? nullptr : &communicator_, parameters_);
  forget_offered();
}

void Pipeline::start() {
  const bool was_detached = detached_ != nullptr;
  // An algorithm that a PeerLost leaves half made would leave the parameters without buckets.
  build(was_detached || communicator_.is_elastic(), host_->move_parameters(planner_.plan()));
  host_->parameters_have_moved();
  if (communicator_.is_elastic() && !was_detached) {
    const ExchangeOptions& exchange = config_.exchange;
    try {
      resume_training({.to = {.algorithm = exchange.algorithm, .topology = exchange.topology}});
    } catch (const PeerLost&) {
      // The step goes on alone, and the next call that needs the others throws.
    }
  }
  tell_of_messages();
  planner_.start_trials(config_.exchange, parameters_);
}

void Pipeline::start_in(std::vector<std::int64_t> order) {
  planner_.take_order(std::move(order));
  make_plan();
  start();
}

void Pipeline::tell_of_messages() {
  const std::int64_t num_refused = host_sharing().num_refused;
  if (num_refused == 0 || std::exchange(step_.has_told_of_messages, true)) return;
  config_.logger.info(concat(
      num_refused, " of ", communicator_.size(), " ranks cannot read the memory of all ranks of ",
      "their host, so messages take its place, which costs time. The system may keep the ranks ",
      "apart (containers, users), or limit files (ulimit -f), memory or mappings"));
}

void Pipeline::warn_of_algorithm() const {
  const std::string warning = outer_warning(config_.exchange.algorithm);
  if (!warning.empty() && communicator_.size() > 1) config_.logger.warning(warning);
}

void Pipeline::drain_parameters() {
  if (host_ != nullptr) {
    host_->drain_parameters();
  } else {
    drain();
  }
}

}  // namespace gossamer
