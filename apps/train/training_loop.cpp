#include "apps/train/training_loop.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/Parallel.h>

#include "apps/train/agreement.hpp"
#include "apps/train/model_file.hpp"
#include "apps/train/rank_setup.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/torch/torch_stream.hpp"
#include "topology/rank_round.hpp"

namespace gossamer::apps {
namespace {

// Streams of the run's seed, so that no two uses draw the same numbers.
constexpr std::uint64_t kModelStream = 1;
// Losses that wait on a GPU until they are read.
constexpr std::int64_t kMostUnread = 1000;

std::shared_ptr<Model> make_net(const RunConfig& config, const TrainingLoop::Setup& setup) {
  auto net = config.model->make(setup.data->train->shape());
  Random random(config.seed, kModelStream);
  net->reset(random);
  // Not only at the end of the run, when it would be too late.
  check_savable(*net);
  // The wrapper copies the values of rank 0 to the other ranks.
  if (setup.world.rank != 0 || setup.resumes || config.model_init.empty()) return net;
  const std::string difference =
      load_model_file(config.model_init, *net, config.model_init_partial,
                      "To load only the values that fit, set model.init_partial: true.");
  if (!difference.empty()) setup.logger.warning(difference);
  return net;
}

/// Collective, unless the rank joins.
std::shared_ptr<Model> make_net_together(const RunConfig& config, const TrainingLoop::Setup& setup,
                                         const LossEntry& loss) {
  const auto make = [&] {
    check_targets(loss, *setup.data);
    return make_net(config, setup);
  };
  return setup.joins ? make() : jointly_slow(setup.communicator, make);
}

std::shared_ptr<Model> place_net(std::shared_ptr<Model> net, const RunConfig& config,
                                 Device device) {
  net->to(torch_device(device));
  set_parameter_types(*net, config.device.precision);
  return net;
}

DataParallelOptions model_options(const RunConfig& config, const TrainingLoop::Setup& setup,
                                  std::shared_ptr<const Schedule> schedule, TorchStream& stream,
                                  std::shared_ptr<Timeline> timeline) {
  return {.exchange = config.exchange,
          .optimizer = config.optimizer,
          .schedule = std::move(schedule),
          .weight_decay = config.weight_decay,
          .decay_bias_and_norm = config.decay_bias_and_norm,
          .parameter_groups = config.parameter_groups,
          .gradients = config.gradients,
          .stream = &stream,
          .num_threads = at::get_num_threads(),
          .bucket_bytes = config.bucket_bytes,
          .mean_over_micro_batches = true,
          .dry_run = setup.dry_run,
          .joins = setup.joins,
          .timeline = std::move(timeline),
          .logger = setup.world.rank == 0 ? setup.logger : Logger()};
}

std::optional<StepTimeline> make_timeline(const RunConfig& config,
                                          const TrainingLoop::Setup& setup) {
  if (config.timeline.empty() || setup.dry_run) return std::nullopt;
  return StepTimeline(setup.communicator, {.path = config.timeline, .about = config.output_dir});
}

}  // namespace

TrainingLoop::TrainingLoop(const RunConfig& config, const Setup& setup)
    : config_(config),
      setup_(setup),
      changes_({present_world(config, setup.world, 0)}),
      phases_(config.phases),
      loss_(loss_for(config.loss, setup.data->train->target())),
      batches_(std::in_place, batches_of(config, setup, changes_)),
      steps_(make_steps(config, *batches_)),
      device_(config.device, {.host = setup.communicator,
                              .world = setup.world,
                              .logger = setup.logger,
                              .timeout_s = config.comm_timeout_s,
                              .joins = setup.joins}),
      step_timeline_(make_timeline(config, setup)),
      timeline_(step_timeline_ ? step_timeline_->timeline() : nullptr),
      net_(place_net(make_net_together(config, setup, loss_), config, device_.device())),
      model_(net_, device_.communicator(),
             model_options(config, setup, steps_.schedule(), device_.stream(), timeline_)),
      progress_(config.progress, setup.logger) {
  model_.train();
  if (setup.world.rank == 0 && batches_->batch_size() < config.batch_size) {
    setup.logger.warning(concat("data.batch_size is ", config.batch_size, ", but each of the ",
                                setup.world.size, " ranks has only ", batches_->batch_size(),
                                " samples, so a step takes ", batches_->batch_size(),
                                " per rank; use more data, fewer ranks or a smaller "
                                "data.batch_size"));
  }
  if (setup.world.rank == 0) {
    const std::string doubt = doubt_about_validation(*setup.data);
    if (!doubt.empty()) setup.logger.warning(doubt);
  }
  if (config.device.precision == Precision::kFp16) scaler_.emplace();
  if (config.ema) ema_.emplace(*net_, *config.ema);
  if (!config.device.graph || setup.dry_run) return;
  graphed_.emplace(model_.core(), make_step_graph(device_.device()),
                   [this](const std::vector<torch::Tensor>& batch) {
                     return forward({.inputs = batch[0], .targets = batch[1]});
                   });
}

torch::Tensor TrainingLoop::forward(const Batch& batch) {
  const ScopedTimer timer(forward_s_);
  const TimelineScope scope(timeline_.get(), {.what = "forward"});
  const AutocastScope autocast(device_.device(), config_.device.precision);
  return loss_.of(model_.forward(batch.inputs), batch.targets, /*sum=*/false);
}

void TrainingLoop::set_elapsed(double seconds) {
  begin_ = Clock::now() -
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

double TrainingLoop::elapsed_s() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

Batch TrainingLoop::next_batch(std::int64_t part) {
  const TimelineScope scope(timeline_.get(), {.what = "batch"});
  const Batch batch = batches_->take(batches_->dealer().first_batch_of(steps_.own()) + part);
  num_samples_ += batch.inputs.size(0);
  window_.samples += batch.inputs.size(0);
  const c10::Device place = torch_device(device_.device());
  return {.inputs = to_device(batch.inputs, place), .targets = to_device(batch.targets, place)};
}

void TrainingLoop::check_finite(const torch::Tensor& loss) {
  // On a GPU, where reading the loss would wait for it, the sweep leaves out what is not finite.
  if (!device_.stream().immediate() || config_.gradients.nonfinite != NonFinite::kAbort) return;
  const double value = loss.item<double>();
  if (std::isfinite(value)) return;
  throw NonFiniteError(concat("rank ", setup_.world.rank, ", step ", steps_.own() + 1,
                              ": the loss is ", value, "; try a smaller optimizer.lr"));
}

torch::Tensor TrainingLoop::forward_and_backward() {
  torch::Tensor sum;
  for (std::int64_t part = 0; part < config_.accumulate; ++part) {
    const torch::Tensor loss = forward(next_batch(part));
    // Before backward, so that no peer gets to mix with what would come of it.
    check_finite(loss);
    sum = part == 0 ? loss.detach() : sum + loss.detach();
    model_.set_accumulate_grad(part + 1 < config_.accumulate);
    const ScopedTimer timer(backward_s_);
    const TimelineScope scope(timeline_.get(), {.what = "backward"});
    net_->backward(scaler_ ? loss * scaler_->scale() : loss);
  }
  return config_.accumulate == 1 ? sum : sum / config_.accumulate;
}

torch::Tensor TrainingLoop::train_step() {
  torch::Tensor loss;
  if (graphed_) {
    const Batch batch = next_batch(0);
    const ScopedTimer timer(backward_s_);
    const TimelineScope scope(timeline_.get(), {.what = "graph"});
    loss = graphed_->step({batch.inputs, batch.targets});
  } else {
    if (scaler_) model_.set_gradient_scale(1.0 / scaler_->scale());
    const std::int64_t skipped = scaler_ ? model_.progress().num_skipped : 0;
    loss = forward_and_backward();
    if (scaler_) scaler_->update(model_.progress().num_skipped > skipped);
  }
  update_ema();
  lr_ = model_.last_lr();
  steps_.add();
  ++window_.steps;
  return loss;
}

void TrainingLoop::update_ema() {
  if (!ema_ || setup_.dry_run) return;
  owes_ema_ = model_.holds_step();
  if (!owes_ema_) ema_->update(model_.model_weight());
}

void TrainingLoop::advance() {
  // On a GPU it is known after a step whether the step was left out. Nothing waits for that here;
  // records have it. Ranks in step leave out the same steps.
  const bool tells = device_.stream().immediate() && (setup_.world.rank == 0 || !steps_.in_step());
  const std::int64_t skipped = tells ? model_.progress().num_skipped : 0;
  {
    const ScopedTimer timer(window_.seconds);
    const ScopedTimer total(train_s_);
    const TimelineScope scope(timeline_.get(), {.what = "step"});
    window_.unread.push_back(train_step());
    if (device_.stream().immediate() || std::ssize(window_.unread) >= kMostUnread) read_losses();
  }
  is_recorded_ = false;
  if (tells && model_.progress().num_skipped != skipped) {
    setup_.logger.warning(concat("step ", steps_.own(), " is left out: a gradient is not finite (",
                                 model_.progress().num_skipped, " so far)"));
  }
}

void TrainingLoop::switch_to(std::size_t phase, bool is_sparse) {
  const TimelineScope scope(timeline_.get(), {.what = "switch"});
  const RunPhase& next = phases_[phase];
  AlgorithmSwitch method = next.method_with(is_sparse);
  // Consensus control must not move the models.
  if (phase == phase_) method.average = false;
  model_.switch_to(method);
  phase_ = phase;
  is_sparse_ = is_sparse;
}

void TrainingLoop::follow_phases() {
  std::size_t phase = phase_;
  while (phase + 1 < phases_.size() && phases_[phase + 1].first_step <= steps_.run()) {
    ++phase;
  }
  if (phase == phase_) return;
  switch_to(phase, false);
  if (setup_.world.rank == 0) {
    setup_.logger.info(concat("after step ", steps_.run(), ": ", describe(phases_[phase].method)));
  }
}

void TrainingLoop::control_consensus() {
  const auto& control = phases_[phase_].control;
  if (!control || steps_.run() % control->every != 0) return;
  const Consensus consensus = measure_consensus();
  earlier_metrics_.bytes_sent +=
      exchange_bytes(model_.plan().bytes(), static_cast<std::size_t>(setup_.world.size));
  const double distance = consensus.distance / consensus.norm;
  const double first_lr = config_.lr * steps_.lr_scale();
  const double lr_factor = first_lr > 0.0 ? model_.lr() / first_lr : 1.0;
  const bool is_sparse = control->chooses_sparse(is_sparse_, distance, lr_factor);
  if (is_sparse == is_sparse_) return;
  switch_to(phase_, is_sparse);
  if (setup_.world.rank == 0) {
    setup_.logger.info(
        concat("after step ", steps_.run(), ": ", describe(phases_[phase_].method_with(is_sparse)),
               ", because the consensus distance is ", shortest(distance),
               " of the model and the target is ", shortest(control->target * lr_factor)));
  }
}

void TrainingLoop::read_losses() {
  if (window_.unread.empty()) return;
  const torch::Tensor all = torch::stack(window_.unread).to(torch::kCPU, torch::kFloat64);
  window_.unread.clear();
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    const double loss = all.data_ptr<double>()[i];
    if (!std::isfinite(loss)) continue;
    window_.loss += loss;
    ++window_.num_losses;
  }
}

void TrainingLoop::run(std::unique_ptr<RunFolder> folder, const std::string& checkpoint) {
  folder_ = std::move(folder);
  begin_ = Clock::now();
  last_checkpoint_ = begin_;
  window_ = {};
  num_samples_ = 0;
  if (folder_ != nullptr && config_.tensorboard) folder_->use_tensorboard();
  try {
    has_joined_ = setup_.joins;
    if (has_joined_) {
      survive([this] { enter(setup_.communicator.elastic()->membership()); });
    } else {
      if (setup_.communicator.is_elastic())
        membership_ = setup_.communicator.elastic()->membership();
      told_members_ = membership_.members;
      // Before another rank may have to go on with the folder. restore() begins where a run
      // continues.
      if (setup_.communicator.is_elastic() && folder_ != nullptr && checkpoint.empty())
        folder_->begin();
      hear_of_folder();
      open_checkpoints();
    }
    if (!checkpoint.empty()) {
      restore(checkpoint);
      restored_step_ = steps_.run();
      keep_reshaped();
      if (folder_ != nullptr) folder_->write_configuration();
    }
    apart([&] { train(); });
    close();
  } catch (const std::exception& error) {
    progress_.end_line();
    // If the others have gone on without this rank, the folder is theirs.
    const bool is_theirs =
        setup_.communicator.is_elastic() && exit_code_of(error) == ExitCode::kPreempted;
    if (!is_theirs) write_failure(error);
    throw;
  }
}

void TrainingLoop::note_sharing() {
  if (folder_ == nullptr || std::exchange(has_noted_sharing_, true)) return;
  const HostSharing sharing = model_.host_sharing();
  folder_->note("shared_memory",
                {{"sharing_ranks", sharing.num_sharing}, {"refused_ranks", sharing.num_refused}});
}

void TrainingLoop::record() {
  note_sharing();
  if (steps_.is_due(config_.consensus_every)) last_consensus_ = measure_consensus().distance;
  if (steps_.is_due(config_.log_every) || steps_.is_due(config_.consensus_every)) write_step();
  if (steps_.is_due(config_.eval_every) && !steps_.is_over()) evaluate_and_record();
  heed_divergence();
}

void TrainingLoop::iterate() {
  if (!is_recorded_) {
    control_consensus();
    record();
    is_recorded_ = true;
  }
  if (steps_.is_over() || is_out_of_patience()) return;
  admit_others();
  meet();
  if (checkpoint_is_due()) {
    checkpointer_->finish();
    start_checkpoint();
  }
  follow_timeline(/*is_over=*/false);
  follow_phases();
  steps_.settle();
  advance();
}

bool TrainingLoop::is_at_end() const {
  return is_recorded_ && (steps_.is_over() || is_out_of_patience());
}

void TrainingLoop::train_in_step() {
  if (setup_.communicator.is_elastic()) {
    // Once, because ranks that have recovered are all here. A rank that has joined finds them here.
    if (!has_joined_) survive([this] { setup_.communicator.barrier(); });
    // Records of the run before it was resumed may be of other members.
    if (restored_step_ >= 0 && membership_.epoch == 0) write_members(Json::object());
  }
  // Decided anew after every loss of ranks, because those that are left follow rank 0.
  while (!has_ended_) {
    survive([this] {
      device_.communicator().check();
      if (resumes_before_evaluation()) {
        evaluate_and_record();
      } else {
        is_at_end() ? end() : iterate();
      }
    });
  }
}

void TrainingLoop::end() {
  follow_timeline(/*is_over=*/true);
  if (is_out_of_patience() && setup_.world.rank == 0) {
    setup_.logger.info(concat("ends after step ", steps_.run(), " of ", steps_.total(),
                              ": the loss of the mean model was least after step ", best_step_,
                              ", ", num_worse_, " evaluations ago (train.patience)"));
  }
  if (meetings_) meetings_->leave();
  admit(false);
  finish();
  is_saved_ = true;
  // A rank that has not heard that all is saved would ask ranks that have left.
  if (setup_.communicator.is_elastic()) setup_.communicator.barrier();
  has_ended_ = true;
}

void TrainingLoop::hear_steps(std::int64_t steps_of_all) {
  steps_.hear(steps_of_all / setup_.world.size, model_.progress().num_updates());
}

void TrainingLoop::train_asynchronously() {
  while (!steps_.is_over() && !is_out_of_patience()) {
    const std::optional<Meetings::News> news = meetings_->poll(own_news());
    if (!news) {
      advance();
      continue;
    }
    steps_.settle();
    hear_steps(news->steps);
    if (!asks_for_something(*news)) continue;
    model_.drain();
    // The sum is older than the last steps.
    hear_steps(std::llround(
        sum_over_ranks(setup_.communicator, {static_cast<double>(steps_.own())}).front()));
    record();
    act_upon(*news);
    if (!steps_.is_over() && checkpoint_is_due()) {
      checkpointer_->finish();
      start_checkpoint();
    }
  }
}

void TrainingLoop::train() {
  if (folder_ != nullptr) {
    write_or_warn([&] { folder_->write_status(status("running"), /*sync=*/false); });
  }
  if (step_timeline_ && !has_joined_) {
    step_timeline_->set_steps(
        config_.timeline_steps.value_or(default_timeline_steps(steps_.total() - steps_.run())));
  }
  if (steps_.in_step()) return train_in_step();
  if (resumes_before_evaluation()) evaluate_and_record();
  train_asynchronously();
  end();
}

}  // namespace gossamer::apps
