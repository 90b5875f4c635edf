#include "apps/train/survival_control.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "apps/train/agreement.hpp"
#include "apps/train/rank_setup.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/bucket/model_average.hpp"

namespace gossamer::apps {
namespace {

/// The members of `all` that `others` lack.
std::vector<std::int64_t> without(std::vector<std::int64_t> all,
                                  const std::vector<std::int64_t>& others) {
  std::erase_if(
      all, [&others](std::int64_t one) { return std::ranges::find(others, one) != others.end(); });
  return all;
}

}  // namespace

SurvivalControl::SurvivalControl(const RunConfig& config, TrainingSetup& setup,
                                 const TrainingParts& parts)
    : config_(config), setup_(setup), parts_(parts) {}

void SurvivalControl::begin() {
  has_joined_ = setup_.joins;
  if (Elastic* const elastic = setup_.communicator.elastic(); elastic && !has_joined_) {
    membership_ = elastic->membership();
  }
  told_members_ = membership_.members;
}

void SurvivalControl::survive(const std::function<void()>& part) {
  try {
    part();
    last_part_ = Clock::now();
  } catch (const PeerLost& lost) {
    if (!setup_.communicator.is_elastic()) throw;
    recover(lost);
  }
}

void SurvivalControl::recover(const PeerLost& lost) {
  CheckpointControl& checkpoints = parts_.checkpoints;
  try {
    go_on(lost);
  } catch (const CommError& error) {
    // The others may have left already, but they have not gone on without this rank.
    const bool is_fenced = error.context().code == ExitCode::kPreempted;
    if (checkpoints.is_stopping() && !is_fenced) checkpoints.leave_now();
    // All is saved.
    if (!parts_.state.is_saved) throw;
    parts_.state.has_ended = true;
  }
  checkpoints.go_on();
}

void SurvivalControl::go_on(const PeerLost& lost) {
  std::string reason = lost.what();
  parts_.recorder.end_line();
  for (bool is_done = false; !is_done;) {
    try {
      const TimelineScope scope(parts_.runner.timeline(), {.what = "members"});
      enter(reconfigure());
      is_done = true;
    } catch (const PeerLost& another) {
      reason = another.what();
    }
  }
  const auto now = Clock::now();
  const std::chrono::duration<double> seconds = now - std::exchange(last_part_, now);
  recovery_s_ += seconds.count();
  if (!parts_.state.has_ended) tell_members(reason, seconds.count());
}

Membership SurvivalControl::reconfigure() {
  parts_.runner.model().detach();
  Communicator& communicator = parts_.runner.device().communicator();
  return communicator.elastic()->reconfigure(parts_.data.steps().own());
}

void SurvivalControl::catch_up(std::int64_t step) {
  const StepCount& steps = parts_.data.steps();
  // A rank that joins makes none of the steps that the others have made.
  while (!setup_.joins && steps.own() < step) {
    parts_.runner.model().catch_up(step);
    parts_.runner.commit_ema();
    Timeline* const timeline = parts_.runner.timeline();
    if (timeline != nullptr && timeline->step() >= 0) timeline->begin_step(steps.own() + 1);
    parts_.runner.advance();
    parts_.state.is_recorded = false;
  }
}

void SurvivalControl::enter(const Membership& membership) {
  membership_ = membership;
  setup_.world = membership.world;
  setup_.logger = Logger(config_.comm.log_level(), concat("rank ", membership.world.rank));
  parts_.checkpoints.close_world();
  parts_.recorder.share_unwritten();
  const Furthest furthest = find_furthest();
  const std::int64_t step = furthest.step;
  catch_up(step);
  introduce(step);
  if (parts_.state.has_ended) return;
  adopt(furthest);
  parts_.phases.enter_world();
  // A file of topologies may be another one on this host.
  agree_with_first(setup_.communicator, "their topologies", parts_.phases.topologies_text());
  // The ranks that have joined fit.
  if (!membership_.all_vote) return enter(reconfigure());
  AlgorithmSwitch to = parts_.phases.method();
  to.average = config_.comm.resync;
  StepRunner& runner = parts_.runner;
  runner.model().resume({.to = to, .joins = setup_.joins});
  runner.commit_ema();
  if (auto& ema = runner.ema()) {
    ema->share(setup_.communicator, mean_weight(setup_.communicator, !setup_.joins).weight);
  }
  if (auto& timeline = runner.step_timeline()) {
    const std::int64_t restored = parts_.checkpoints.restored_step();
    timeline->enter_world(step - std::max<std::int64_t>(restored, 0));
  }
  take_over_folder();
  parts_.recorder.write_unwritten();
  parts_.checkpoints.open(membership_.members);
  setup_.joins = false;
}

void SurvivalControl::take_over_folder() {
  // The rank that knew the newest checkpoint is lost.
  if (parts_.recorder.take_over_folder()) parts_.checkpoints.find_newest();
}

std::string SurvivalControl::description() const {
  std::string text = shared_lines(config_);
  text += concat("training samples: ", setup_.data->train->size(),
                 "\nvalidation samples: ", setup_.data->validation->size(), "\n");
  return text + parts_.runner.model().core()->description();
}

SurvivalControl::Furthest SurvivalControl::find_furthest() const {
  const Json own = {setup_.joins ? -1 : parts_.data.steps().own(), parts_.state.is_recorded};
  std::vector<std::pair<std::int64_t, bool>> ranks;
  for (const std::string& text : setup_.communicator.all_gather(own.dump())) {
    ranks.push_back(Json::parse(text));
  }
  const auto most = std::ranges::max_element(ranks);
  return {.step = most->first, .rank = static_cast<int>(most - ranks.begin())};
}

void SurvivalControl::introduce(std::int64_t step) {
  StepCount& steps = parts_.data.steps();
  Json mine = {{"joins", setup_.joins},
               {"saved", parts_.state.is_saved},
               {"stopped", parts_.checkpoints.is_stopping()}};
  if (setup_.is_first()) {
    mine["total_steps"] = steps.total();
    mine["folder"] = parts_.recorder.folder_path();
    mine["writer"] = this_process();
    mine["changes"] = parts_.data.changes();
  }
  const std::vector<std::string> all = setup_.communicator.all_gather(mine.dump());
  const Json first = Json::parse(all.front());
  const auto says = [](const char* what) {
    return [what](const std::string& one) { return Json::parse(one)[what].get<bool>(); };
  };
  parts_.state.has_ended = std::ranges::any_of(all, says("saved"));
  if (first["joins"]) {
    throw CommError({.rank = setup_.world.rank, .label = {.what = "join"}},
                    "no rank of the run is left that has the model; continue the run from its "
                    "last checkpoint");
  }
  agree_with_first(setup_.communicator, "what they train", description());
  if (setup_.joins) {
    const std::int64_t total = first["total_steps"];
    steps.replan(total, config_.make_schedule(total));
  }
  parts_.recorder.set_folder(first["folder"], first["writer"]);
  // Only ranks that have passed the last barrier are lost.
  if (std::ranges::all_of(all, says("stopped"))) {
    take_over_folder();
    parts_.checkpoints.leave_now();
  }
  parts_.data.take_changes(first["changes"].get<std::vector<std::int64_t>>(), step);
}

void SurvivalControl::visit_common(StateVisitor& visitor) {
  std::int64_t is_recorded = parts_.state.is_recorded ? 1 : 0;
  parts_.phases.visit_common(visitor);
  visitor.number("recorded", is_recorded);
  parts_.evaluator.visit_common(visitor);
  parts_.checkpoints.visit_common(visitor);
  parts_.state.is_recorded = is_recorded != 0;
}

void SurvivalControl::adopt(const Furthest& furthest) {
  StepCount& steps = parts_.data.steps();
  TrainingWindow& window = parts_.runner.window();
  SharedNumbers numbers;
  std::int64_t settled = steps.handled();
  std::int64_t window_steps = window.steps;
  double elapsed = parts_.recorder.elapsed_s();
  const auto visit = [&] {
    visit_common(numbers);
    numbers.number("settled", settled);
    numbers.number("window", window_steps);
    numbers.number("elapsed", elapsed);
    numbers.number("recovery", recovery_s_);
  };
  visit();
  // In this mean one rank alone counts.
  const bool counts = setup_.world.rank == furthest.rank;
  numbers.share(setup_.communicator, counts ? setup_.world.size : 0.0);
  visit();
  steps.catch_up(furthest.step, settled);
  // There is a record of steps that this rank would count again.
  if (window.steps > window_steps) window = {};
  if (setup_.joins) parts_.recorder.set_elapsed(elapsed);
}

void SurvivalControl::tell_members(const std::string& reason, double seconds) {
  const std::int64_t step = parts_.data.steps().run();
  const std::vector<std::int64_t> before = std::exchange(told_members_, membership_.members);
  last_change_ = {{"lost", without(before, told_members_)},
                  {"joined", without(told_members_, before)},
                  {"recovery_s", seconds}};
  if (!setup_.is_first()) return;
  setup_.logger.warning(
      concat("after step ", step, ": ", reason, "; ",
             setup_.world.size == 1 ? "1 rank goes" : concat(setup_.world.size, " ranks go"),
             " on with ", describe(parts_.phases.method()), ", ",
             shortest(std::round(seconds * 1e3) / 1e3), " s later"));
  last_change_.update({{"step", step}, {"elapsed_s", parts_.recorder.elapsed_s()}});
  write_members(last_change_);
}

void SurvivalControl::write_members(const Json& change) {
  Json record = {{"kind", "members"},          {"step", parts_.data.steps().run()},
                 {"epoch", membership_.epoch}, {"members", membership_.members},
                 {"goodput", goodput()},       {"elapsed_s", parts_.recorder.elapsed_s()}};
  record.update(change);
  parts_.recorder.write_record(record);
}

void SurvivalControl::add_status(Json& status) const {
  if (membership_.members.empty()) return;
  status["members"] = membership_.members;
  status["epoch"] = membership_.epoch;
  status["goodput"] = goodput();
  if (!last_change_.is_null()) status["last_change"] = last_change_;
}

void SurvivalControl::visit(StateVisitor& visitor) {
  constexpr const char* kRecovery = "record/recovery_s";
  if (visitor.loads() ? visitor.holds(kRecovery) : setup_.communicator.is_elastic()) {
    visitor.number(kRecovery, recovery_s_);
  }
}

}  // namespace gossamer::apps
