#include "apps/train/step_runner.hpp"

#include <cmath>
#include <utility>

#include <ATen/Parallel.h>

#include "apps/train/agreement.hpp"
#include "apps/train/evaluation.hpp"
#include "apps/train/model_file.hpp"
#include "apps/train/rank_setup.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/torch/torch_stream.hpp"

namespace gossamer::apps {
namespace {

// Streams of the run's seed, so that no two uses draw the same numbers.
constexpr std::uint64_t kModelStream = 1;
// Losses that wait on a GPU until they are read.
constexpr std::int64_t kMostUnread = 1000;

std::shared_ptr<Model> make_net(const RunConfig& config, const TrainingSetup& setup) {
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
std::shared_ptr<Model> make_net_together(const RunConfig& config, const TrainingSetup& setup,
                                         const LossEntry& loss) {
  const auto make = [&] {
    check_targets(loss, *setup.data);
    return make_net(config, setup);
  };
  return setup.joins ? make() : all_or_none_slow(setup.communicator, make);
}

std::shared_ptr<Model> place_net(std::shared_ptr<Model> net, const RunConfig& config,
                                 Device device) {
  net->to(torch_device(device));
  set_parameter_types(*net, config.device.precision);
  return net;
}

DataParallelOptions model_options(const RunConfig& config, const TrainingSetup& setup,
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

std::optional<StepTimeline> make_timeline(const RunConfig& config, const TrainingSetup& setup) {
  if (config.timeline.empty() || setup.dry_run) return std::nullopt;
  return StepTimeline(setup.communicator, {.path = config.timeline, .about = config.output_dir});
}

}  // namespace

void TrainingWindow::read_losses() {
  if (unread.empty()) return;
  const torch::Tensor all = torch::stack(unread).to(torch::kCPU, torch::kFloat64);
  unread.clear();
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    const double value = all.data_ptr<double>()[i];
    if (!std::isfinite(value)) continue;
    if (num_losses == 0) first_loss = value;
    loss += value;
    ++num_losses;
  }
}

StepRunner::StepRunner(const RunConfig& config, const TrainingSetup& setup, DataPlan& data)
    : config_(config),
      setup_(setup),
      data_(data),
      loss_(loss_for(config.loss, setup.data->train->target())),
      device_(config.device, {.host = setup.communicator,
                              .world = setup.world,
                              .logger = setup.logger,
                              .timeout_s = config.comm.launch.options.timeout_s,
                              .joins = setup.joins}),
      step_timeline_(make_timeline(config, setup)),
      net_(place_net(make_net_together(config, setup, loss_), config, device_.device())),
      model_(net_, device_.communicator(),
             model_options(config, setup, data.steps().schedule(), device_.stream(),
                           step_timeline_ ? step_timeline_->timeline() : nullptr)) {
  model_.train();
  if (config.device.precision == Precision::kFp16) scaler_.emplace();
  if (config.ema) ema_.emplace(*net_, *config.ema);
  if (!config.device.graph || setup.dry_run) return;
  graphed_.emplace(model_.core(), make_step_graph(device_.device()),
                   [this](const std::vector<torch::Tensor>& batch) {
                     return forward({.inputs = batch[0], .targets = batch[1]});
                   });
}

torch::Tensor StepRunner::forward(const Batch& batch) {
  const ScopedTimer timer(times_.forward_s);
  const TimelineScope scope(timeline(), {.what = "forward"});
  const AutocastScope autocast(device_.device(), config_.device.precision);
  return loss_.of(model_.forward(batch.inputs), batch.targets, /*sum=*/false);
}

Batch StepRunner::next_batch(std::int64_t part) {
  const TimelineScope scope(timeline(), {.what = "batch"});
  const Batch batch = data_.take(part);
  num_samples_ += batch.inputs.size(0);
  window_.samples += batch.inputs.size(0);
  const c10::Device place = torch_device(device_.device());
  return {.inputs = to_device(batch.inputs, place), .targets = to_device(batch.targets, place)};
}

void StepRunner::check_finite(const torch::Tensor& loss) {
  // On a GPU, where reading the loss would wait for it, the sweep leaves out what is not finite.
  if (!device_.stream().immediate() || config_.gradients.nonfinite != NonFinite::kAbort) return;
  const double value = loss.item<double>();
  if (std::isfinite(value)) return;
  throw NonFiniteError(concat("rank ", setup_.world.rank, ", step ", data_.steps().own() + 1,
                              ": the loss is ", value, "; try a smaller optimizer.lr"));
}

torch::Tensor StepRunner::forward_and_backward() {
  torch::Tensor sum;
  for (std::int64_t part = 0; part < config_.accumulate; ++part) {
    const torch::Tensor loss = forward(next_batch(part));
    // Before backward, so that no peer gets to mix with what would come of it.
    check_finite(loss);
    sum = part == 0 ? loss.detach() : sum + loss.detach();
    model_.set_accumulate_grad(part + 1 < config_.accumulate);
    const ScopedTimer timer(times_.backward_s);
    const TimelineScope scope(timeline(), {.what = "backward"});
    net_->backward(scaler_ ? loss * scaler_->scale() : loss);
  }
  return config_.accumulate == 1 ? sum : sum / config_.accumulate;
}

torch::Tensor StepRunner::train_step() {
  torch::Tensor loss;
  if (graphed_) {
    const Batch batch = next_batch(0);
    const ScopedTimer timer(times_.backward_s);
    const TimelineScope scope(timeline(), {.what = "graph"});
    loss = graphed_->step({batch.inputs, batch.targets});
  } else {
    if (scaler_) model_.engine().set_gradient_scale(1.0 / scaler_->scale());
    const std::int64_t skipped = scaler_ ? model_.engine().progress().num_skipped : 0;
    loss = forward_and_backward();
    if (scaler_) scaler_->update(model_.engine().progress().num_skipped > skipped);
  }
  update_ema();
  lr_ = model_.engine().last_lr();
  data_.steps().add();
  ++window_.steps;
  return loss;
}

void StepRunner::update_ema() {
  if (!ema_ || setup_.dry_run) return;
  owes_ema_ = model_.engine().has_uncommitted_step();
  if (!owes_ema_) ema_->update(model_.engine().model_weight());
}

void StepRunner::commit_ema() {
  if (owes_ema_ && !model_.engine().has_uncommitted_step()) update_ema();
}

void StepRunner::advance() {
  // On a GPU it is known after a step whether the step was left out. Nothing waits for that here;
  // records have it. Ranks in step leave out the same steps.
  const bool tells =
      device_.stream().immediate() && (setup_.world.rank == 0 || !data_.steps().in_step());
  const std::int64_t skipped = tells ? model_.engine().progress().num_skipped : 0;
  {
    const ScopedTimer timer(window_.seconds);
    const ScopedTimer total(times_.train_s);
    const TimelineScope scope(timeline(), {.what = "step"});
    window_.unread.push_back(train_step());
    if (device_.stream().immediate() || std::ssize(window_.unread) >= kMostUnread)
      window_.read_losses();
  }
  if (tells && model_.engine().progress().num_skipped != skipped) {
    setup_.logger.warning(concat("step ", data_.steps().own(),
                                 " is left out: a gradient is not finite (",
                                 model_.engine().progress().num_skipped, " so far)"));
  }
}

void StepRunner::advance_timeline(bool is_over) {
  if (!step_timeline_) return;
  step_timeline_->advance(
      is_over ? std::nullopt : std::optional(data_.steps().run() + 1), [this] { model_.drain(); },
      setup_.logger);
}

void StepRunner::begin_run() {
  window_ = {};
  num_samples_ = 0;
}

void StepRunner::visit_model(StateVisitor& visitor) {
  model_.visit(visitor);
  data_.steps().visit(visitor);
}

void StepRunner::visit_sums(StateVisitor& visitor) {
  visitor.number("train/samples", num_samples_);
  visitor.number("train/window_loss", window_.loss);
  visitor.number("train/window_losses", window_.num_losses);
  constexpr const char* kFirstLoss = "train/window_first_loss";
  if (!visitor.loads() || visitor.holds(kFirstLoss)) visitor.number(kFirstLoss, window_.first_loss);
  visitor.number("train/window_samples", window_.samples);
  visitor.number("train/window_steps", window_.steps);
  visitor.number("train/lr", lr_);
  if (scaler_) scaler_->visit(visitor);
  if (ema_) ema_->visit(visitor);
}

void StepRunner::visit_times(StateVisitor& visitor) {
  visitor.number("record/window_s", window_.seconds);
  visitor.number("record/train_s", times_.train_s);
  visitor.number("record/forward_s", times_.forward_s);
  visitor.number("record/backward_s", times_.backward_s);
}

}  // namespace gossamer::apps
