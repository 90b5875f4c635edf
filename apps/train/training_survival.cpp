// The part of the training loop that goes on when ranks die, and takes others in.

#include <algorithm>
#include <cmath>
#include <utility>

#include "apps/train/agreement.hpp"
#include "apps/train/rank_setup.hpp"
#include "apps/train/training_loop.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/bucket/bucket_plan.hpp"
#include "core/bucket/model_average.hpp"
#include "core/exchange/topology_text.hpp"

namespace gossamer::apps {
namespace {

/// Those of `all` that `others` lack.
std::vector<std::int64_t> without(std::vector<std::int64_t> all,
                                  const std::vector<std::int64_t>& others) {
  std::erase_if(
      all, [&others](std::int64_t one) { return std::ranges::find(others, one) != others.end(); });
  return all;
}

}  // namespace

void TrainingLoop::survive(const std::function<void()>& part) {
  try {
    part();
    last_part_ = Clock::now();
  } catch (const PeerLost& lost) {
    if (!setup_.communicator.is_elastic()) throw;
    recover(lost);
  }
}

void TrainingLoop::recover(const PeerLost& lost) {
  try {
    go_on(lost);
  } catch (const CommError& error) {
    // The others may have left already, but they have not gone on without this rank.
    const bool is_fenced = error.context().code == ExitCode::kPreempted;
    if (stopped_ && !is_fenced) leave_now();
    // All is saved.
    if (!is_saved_) throw;
    has_ended_ = true;
  }
  stopped_.reset();
}

void TrainingLoop::go_on(const PeerLost& lost) {
  std::string reason = lost.what();
  progress_.end_line();
  for (bool is_done = false; !is_done;) {
    try {
      const TimelineScope scope(timeline_.get(), {.what = "members"});
      model_.detach();
      const Membership membership = device_.communicator().elastic()->reconfigure(steps_.own());
      catch_up(membership.step);
      enter(membership);
      is_done = true;
    } catch (const PeerLost& another) {
      reason = another.what();
    }
  }
  const auto now = Clock::now();
  const std::chrono::duration<double> seconds = now - std::exchange(last_part_, now);
  recovery_s_ += seconds.count();
  if (!has_ended_) tell_members(reason, seconds.count());
}

void TrainingLoop::catch_up(std::int64_t step) {
  // Who joins makes none of the steps that the others have made.
  while (!setup_.joins && steps_.own() < step) {
    model_.follow(step);
    if (owes_ema_ && !model_.holds_step()) update_ema();
    if (timeline_ && timeline_->step() >= 0) timeline_->begin_step(steps_.own() + 1);
    advance();
  }
}

void TrainingLoop::enter(const Membership& membership) {
  membership_ = membership;
  setup_.world = membership.world;
  setup_.logger = Logger(config_.log_level, concat("rank ", membership.world.rank));
  meetings_.reset();
  if (checkpointer_) {
    owes_checkpoint_ = owes_checkpoint_ || checkpointer_->under_way();
    checkpoint_history_ = checkpointer_->give_up();
  }
  checkpointer_.reset();
  introduce(membership);
  if (has_ended_) return;
  follow_first_rank(membership.step);
  phases_ = config_.phases_in(setup_.world);
  compare_topologies();
  AlgorithmSwitch to = phases_[phase_].method_with(is_sparse_);
  to.average = config_.resync;
  model_.resume({.to = to, .joins = setup_.joins});
  if (owes_ema_ && !model_.holds_step()) update_ema();
  if (ema_) {
    ema_->share(setup_.communicator, mean_weight(setup_.communicator, !setup_.joins).weight);
  }
  if (step_timeline_) {
    step_timeline_->follow_world(membership.step - std::max<std::int64_t>(restored_step_, 0));
  }
  open_folder();
  open_checkpoints();
  setup_.joins = false;
}

void TrainingLoop::admit(bool admits) {
  if (Elastic* const elastic = setup_.communicator.elastic()) elastic->admit(admits);
}

void TrainingLoop::admit_others() {
  if (!checkpointer_ || !checkpointer_->under_way()) admit(true);
}

std::string TrainingLoop::description() const {
  std::string text = shared_lines(config_);
  text += concat("training samples: ", setup_.data->train->size(),
                 "\nvalidation samples: ", setup_.data->validation->size(), "\n");
  return text + model_.core()->description();
}

void TrainingLoop::introduce(const Membership& membership) {
  Json mine = {{"joins", setup_.joins}, {"saved", is_saved_}, {"stopped", stopped_.has_value()}};
  if (setup_.world.rank == 0) {
    mine["total_steps"] = steps_.total();
    mine["folder"] = folder_path_;
    mine["writer"] = this_process();
    mine["changes"] = numbers_of(changes_);
  }
  const std::vector<std::string> all = setup_.communicator.all_gather(mine.dump());
  const Json first = Json::parse(all.front());
  const auto says = [](const char* what) {
    return [what](const std::string& one) { return Json::parse(one)[what].get<bool>(); };
  };
  has_ended_ = std::ranges::any_of(all, says("saved"));
  if (first["joins"]) {
    throw CommError({.rank = setup_.world.rank, .label = {.what = "join"}},
                    "no rank of the run is left that has the model; continue the run from its "
                    "last checkpoint");
  }
  agree_with_first(setup_.communicator, "what they train", description());
  if (setup_.joins) {
    const std::int64_t total = first["total_steps"];
    steps_.replan(total, config_.make_schedule(total));
  }
  folder_path_ = first["folder"];
  folder_writer_ = first["writer"];
  // Only ranks that have passed the last barrier are lost.
  if (std::ranges::all_of(all, says("stopped"))) {
    open_folder();
    leave_now();
  }
  changes_ = changes_of(first["changes"].get<std::vector<std::int64_t>>());
  deal_from(membership.step);
}

void TrainingLoop::compare_topologies() {
  std::string own;
  for (const RunPhase& phase : phases_) {
    for (const bool is_sparse : {false, phase.control.has_value()}) {
      const auto topology = phase.method_with(is_sparse).topology;
      own += topology ? text_of(*topology) + "\n" : "none\n";
    }
  }
  // A file may be another one on this host.
  agree_with_first(setup_.communicator, "their topologies", own);
}

void TrainingLoop::visit_common(StateVisitor& visitor) {
  auto phase = static_cast<std::int64_t>(phase_);
  std::int64_t is_sparse = is_sparse_ ? 1 : 0;
  std::int64_t is_recorded = is_recorded_ ? 1 : 0;
  // Integers are not negative here (SharedNumbers).
  std::int64_t evaluated = evaluated_step_ + 1;
  std::int64_t saved = saved_step_ + 1;
  std::int64_t restored = restored_step_ + 1;
  std::int64_t owed = owes_checkpoint_ ? 1 : 0;
  visitor.number("phase", phase);
  visitor.number("sparse", is_sparse);
  visitor.number("recorded", is_recorded);
  divergence_.visit(visitor);
  visitor.number("best_loss", best_loss_);
  visitor.number("best_step", best_step_);
  visitor.number("num_worse", num_worse_);
  visitor.number("evaluated", evaluated);
  visitor.number("saved", saved);
  visitor.number("restored", restored);
  visitor.number("owed", owed);
  phase_ = static_cast<std::size_t>(phase);
  is_sparse_ = is_sparse != 0;
  is_recorded_ = is_recorded != 0;
  evaluated_step_ = evaluated - 1;
  saved_step_ = saved - 1;
  restored_step_ = restored - 1;
  owes_checkpoint_ = owed != 0;
}

void TrainingLoop::follow_first_rank(std::int64_t step) {
  SharedNumbers numbers;
  std::int64_t settled = steps_.settled();
  std::int64_t window_steps = window_.steps;
  double elapsed = elapsed_s();
  const auto visit = [&] {
    visit_common(numbers);
    numbers.number("settled", settled);
    numbers.number("window", window_steps);
    numbers.number("elapsed", elapsed);
    numbers.number("recovery", recovery_s_);
  };
  visit();
  // In this mean rank 0 alone counts.
  numbers.share(setup_.communicator, setup_.world.rank == 0 ? setup_.world.size : 0.0);
  visit();
  steps_.follow(step, settled);
  // Rank 0 has written a record of steps that this rank would count again.
  if (window_.steps > window_steps) window_ = {};
  if (setup_.joins) set_elapsed(elapsed);
}

void TrainingLoop::hear_of_folder() {
  const std::string path = folder_ != nullptr ? folder_->path() : "";
  folder_path_ = setup_.communicator.all_gather(path).front();
  folder_writer_ = setup_.communicator.all_gather(this_process()).front();
}

void TrainingLoop::open_folder() {
  if (setup_.world.rank != 0 || folder_ != nullptr) return;
  folder_ = std::make_unique<RunFolder>(folder_path_, config_.resolved, IfFinished::kTakeOver);
  if (config_.tensorboard) folder_->use_tensorboard();
  folder_->take_over(steps_.run());
  // The rank that knew them is lost.
  const std::vector<std::string> saved = list_checkpoints(checkpoint_folder(folder_path_));
  if (!saved.empty()) checkpoint_history_.newest = saved.back();
}

void TrainingLoop::tell_members(const std::string& reason, double seconds) {
  const std::vector<std::int64_t> before = std::exchange(told_members_, membership_.members);
  last_change_ = {{"lost", without(before, told_members_)},
                  {"joined", without(told_members_, before)},
                  {"recovery_s", seconds}};
  if (setup_.world.rank != 0) return;
  setup_.logger.warning(
      concat("after step ", steps_.run(), ": ", reason, "; ",
             setup_.world.size == 1 ? "1 rank goes" : concat(setup_.world.size, " ranks go"),
             " on with ", describe(phases_[phase_].method_with(is_sparse_)), ", ",
             shortest(std::round(seconds * 1e3) / 1e3), " s later"));
  last_change_.update({{"step", steps_.run()}, {"elapsed_s", elapsed_s()}});
  write_members(last_change_);
}

void TrainingLoop::write_members(const Json& change) {
  if (folder_ == nullptr) return;
  Json record = {{"kind", "members"},          {"step", steps_.run()},
                 {"epoch", membership_.epoch}, {"members", membership_.members},
                 {"goodput", goodput()},       {"elapsed_s", elapsed_s()}};
  record.update(change);
  write_or_warn([&] {
    folder_->write_metrics(record);
    folder_->write_status(status("running"), /*sync=*/false);
  });
}

}  // namespace gossamer::apps
