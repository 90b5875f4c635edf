#include "apps/train/training_loop.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>

#include "apps/train/agreement.hpp"
#include "apps/train/model_file.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/block_checksum.hpp"
#include "core/torch/parameters.hpp"
#include "core/torch/torch_stream.hpp"

namespace gossamer::apps {
namespace {

// Streams of the run's seed, so that no two uses draw the same numbers.
constexpr std::uint64_t kModelStream = 1;
// Losses that wait on a GPU until somebody wants to know them.
constexpr std::int64_t kMostUnread = 1000;

std::shared_ptr<Classifier> make_classifier(const RunConfig& config, const Samples& samples,
                                            Device device) {
  auto model = config.model->make(shape_of(samples));
  Random random(config.seed, kModelStream);
  model->reset(random);
  model->to(torch_device(device));
  set_parameter_types(*model, config.device.precision);
  return model;
}

BatchSampler make_sampler(const RunConfig& config, const TrainingLoop::Setup& setup) {
  const Samples& train = setup.data->train;
  // Text has no labels to deal out by: all windows are alike.
  const std::vector<std::int64_t> alike(
      train.kind == SampleKind::kTokens ? static_cast<std::size_t>(train.size) : 0);
  auto shards = shard_samples(train.kind == SampleKind::kTokens ? alike : train.labels,
                              setup.world.size, config.seed, config.dirichlet_alpha);
  return {std::move(shards[static_cast<std::size_t>(setup.world.rank)]), config.batch_size,
          config.seed, setup.world.rank};
}

DataParallelOptions model_options(const RunConfig& config, const TrainingLoop::Setup& setup,
                                  std::int64_t total_steps, TorchStream& stream) {
  return {.algorithm = config.algorithm,
          .topology = config.topology,
          .optimizer = config.optimizer,
          .schedule = config.make_schedule(total_steps),
          .weight_decay = config.weight_decay,
          .decay_bias_and_norm = config.decay_bias_and_norm,
          .gradients = config.gradients,
          .stream = &stream,
          .num_threads = at::get_num_threads(),
          .bucket_bytes = config.bucket_bytes,
          .dry_run = setup.dry_run,
          .logger = setup.world.rank == 0 ? setup.logger : Logger()};
}

}  // namespace

TrainingLoop::TrainingLoop(const RunConfig& config, const Setup& setup)
    : config_(config),
      setup_(setup),
      sampler_(make_sampler(config, setup)),
      total_steps_(config.steps.value_or(config.epochs * sampler_.batches_per_epoch())),
      device_(config.device, {.host = setup.communicator,
                              .world = setup.world,
                              .logger = setup.logger,
                              .timeout_s = config.comm_timeout_s}),
      classifier_(make_classifier(config, setup.data->train, device_.device())),
      model_(classifier_, device_.communicator(),
             model_options(config, setup, total_steps_, device_.stream())),
      progress_(config.progress, setup.logger) {
  model_.train();
  if (setup.world.rank == 0 && sampler_.batch_size() < config.batch_size) {
    setup.logger.warning(concat("data.batch_size is ", config.batch_size, ", but each of the ",
                                setup.world.size, " ranks has only ", sampler_.batch_size(),
                                " samples, so a step takes ", sampler_.batch_size(),
                                " per rank; use more data, fewer ranks or a smaller "
                                "data.batch_size"));
  }
  if (!config.device.graph || setup.dry_run) return;
  graphed_.emplace(
      model_.core(), make_step_graph(device_.device()),
      [this](const std::vector<torch::Tensor>& batch) { return forward(batch[0], batch[1]); });
}

torch::Tensor TrainingLoop::forward(const torch::Tensor& inputs, const torch::Tensor& labels) {
  const ScopedTimer timer(forward_s_);
  const AutocastScope autocast(device_.device(), config_.device.precision);
  return torch::nn::functional::cross_entropy(model_.forward(inputs), labels);
}

bool TrainingLoop::is_due(std::int64_t every) const {
  return every > 0 && (step_ % every == 0 || step_ == total_steps_);
}

double TrainingLoop::elapsed_s() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

torch::Tensor TrainingLoop::train_step() {
  const auto indices = sampler_.batch(step_);
  num_samples_ += std::ssize(indices);
  window_.samples += std::ssize(indices);
  const c10::Device place = torch_device(device_.device());
  const torch::Tensor inputs = to_device(input_batch(setup_.data->train, indices), place);
  const torch::Tensor labels = to_device(label_batch(setup_.data->train, indices), place);
  if (graphed_) {
    const ScopedTimer timer(backward_s_);
    torch::Tensor loss = graphed_->step({inputs, labels});
    lr_ = model_.last_lr();
    ++step_;
    return loss;
  }
  const torch::Tensor loss = forward(inputs, labels);
  if (device_.stream().immediate() && config_.gradients.nonfinite == NonFinite::kAbort) {
    // Before backward, so that no peer gets to mix with what would come of it. On a GPU, where
    // reading the loss would wait for it, the sweep leaves out what is not finite.
    const double value = loss.item<double>();
    if (!std::isfinite(value)) {
      throw NonFiniteError(concat("rank ", setup_.world.rank, ", step ", step_ + 1,
                                  ": the loss is ", value, "; try a smaller optimizer.lr"));
    }
  }
  {
    const ScopedTimer timer(backward_s_);
    loss.backward();
  }
  lr_ = model_.last_lr();
  ++step_;
  return loss.detach();
}

double TrainingLoop::root_mean_square(double distance) {
  const std::vector<double> sum = sum_over_ranks(setup_.communicator, {distance * distance});
  return std::sqrt(sum[0] / setup_.world.size);
}

double TrainingLoop::measure_consensus() {
  const AverageScope scope = model_.global_average(false);
  return root_mean_square(scope.consensus_distance());
}

TrainingLoop::Evaluation TrainingLoop::evaluate(const std::function<void()>& with_mean) {
  // A scope for each model: autocast keeps the parameters it has cast until its end.
  const auto in_precision = [this](const auto& score_model) {
    const AutocastScope autocast(device_.device(), config_.device.precision);
    return score_model();
  };
  const double mine =
      in_precision([this] { return score(*classifier_, setup_.data->validation).accuracy(); });
  const std::vector<double> all = gather_numbers(setup_.communicator, mine);
  const AverageScope scope = model_.global_average();
  Evaluation result;
  result.worst_local = *std::ranges::min_element(all);
  for (const double accuracy : all) result.mean_local += accuracy / setup_.world.size;
  result.consensus_distance = root_mean_square(scope.consensus_distance());
  result.mean_model = in_precision([this] {
    return score_together(setup_.communicator, *classifier_, setup_.data->validation);
  });
  if (with_mean) with_mean();
  return result;
}

void TrainingLoop::save(RunFolder* folder) {
  std::vector<NamedTensor> tensors;
  if (folder != nullptr) tensors = copy_to_host(*classifier_);
  jointly_slow(setup_.communicator, [&] {
    if (folder != nullptr) folder->write_model(tensors);
    return true;
  });
}

void TrainingLoop::advance() {
  // On a GPU it is known when the step is over, which nobody waits for here; records have it.
  const bool tells = device_.stream().immediate() && setup_.world.rank == 0;
  const std::int64_t skipped = tells ? model_.progress().num_skipped : 0;
  {
    const ScopedTimer timer(window_.seconds);
    const ScopedTimer total(train_s_);
    window_.unread.push_back(train_step());
    if (device_.stream().immediate() || std::ssize(window_.unread) >= kMostUnread) read_losses();
  }
  if (tells && model_.progress().num_skipped != skipped) {
    setup_.logger.warning(concat("step ", step_, " is left out: a gradient is not finite (",
                                 model_.progress().num_skipped, " so far)"));
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

void TrainingLoop::write_step(RunFolder* folder) {
  {
    // On a GPU this waits for the window's steps, which its time must count.
    const ScopedTimer timer(window_.seconds);
    const ScopedTimer total(train_s_);
    read_losses();
  }
  const std::vector<double> sums =
      sum_over_ranks(setup_.communicator, {window_.loss, static_cast<double>(window_.num_losses),
                                           static_cast<double>(window_.samples)});
  if (folder == nullptr) {
    window_ = {};
    return;
  }
  const ProgressState state{.step = step_,
                            .total_steps = total_steps_,
                            .loss = sums[0] / sums[1],
                            .lr = lr_,
                            .samples_per_s = sums[2] / window_.seconds,
                            .seconds_left = elapsed_s() / static_cast<double>(step_) *
                                            static_cast<double>(total_steps_ - step_),
                            .consensus_distance = last_consensus_};
  Json record = {
      {"kind", "step"},
      {"step", state.step},
      {"epoch", static_cast<double>(step_) / static_cast<double>(sampler_.batches_per_epoch())},
      {"loss", state.loss},
      {"lr", state.lr}};
  if (config_.gradients.nonfinite == NonFinite::kSkip) {
    record["skipped_steps"] = model_.progress().num_skipped;
  }
  if (is_due(config_.consensus_every)) record["consensus_distance"] = *last_consensus_;
  record["samples_per_s"] = state.samples_per_s;
  record["elapsed_s"] = elapsed_s();
  folder->write_metrics(record);
  folder->write_status(status("running"), /*sync=*/false);
  if (setup_.observer) {
    setup_.observer(state);
  } else {
    progress_.show(state);
  }
  window_ = {};
}

void TrainingLoop::write_evaluation(RunFolder* folder, const Evaluation& evaluation) const {
  if (folder == nullptr) return;
  folder->write_metrics({{"kind", "eval"},
                         {"step", step_},
                         {"accuracy_mean_model", evaluation.mean_model.accuracy()},
                         {"loss_mean_model", evaluation.mean_model.loss()},
                         {"accuracy_worst_local", evaluation.worst_local},
                         {"accuracy_mean_local", evaluation.mean_local},
                         {"consensus_distance", evaluation.consensus_distance},
                         {"elapsed_s", elapsed_s()}});
}

Json TrainingLoop::status(std::string_view state) {
  Json status = {
      {"state", state}, {"step", step_}, {"total_steps", total_steps_}, {"elapsed_s", elapsed_s()}};
  if (checkpointer_ && !checkpointer_->newest().empty()) {
    status["last_checkpoint"] = checkpointer_->newest();
  }
  return status;
}

void TrainingLoop::write_failure(const RunFolder& folder, const std::exception& error) {
  Json end = status(is_stop(error) ? "stopped" : "failed");
  end["message"] = error.what();
  end["exit_code"] = static_cast<int>(exit_code_at_end(error));
  try {
    folder.write_status(end, /*sync=*/true);
  } catch (const CheckpointError& second) {
    setup_.logger.warning(second.what());
  }
}

void TrainingLoop::run(RunFolder* folder, const std::string& checkpoint) {
  begin_ = Clock::now();
  window_ = {};
  num_samples_ = 0;
  try {
    open_checkpoints(folder);
    if (!checkpoint.empty()) {
      restore(checkpoint, folder);
      restored_step_ = step_;
    }
    train(folder);
    close();
  } catch (const std::exception& error) {
    progress_.end_line();
    if (folder != nullptr) write_failure(*folder, error);
    throw;
  }
}

void TrainingLoop::train(RunFolder* folder) {
  if (folder != nullptr) folder->write_status(status("running"), /*sync=*/false);
  while (step_ < total_steps_) {
    meet(folder);
    if (checkpoint_is_due()) {
      checkpointer_->finish();
      start_checkpoint(folder);
    }
    advance();
    if (is_due(config_.consensus_every)) last_consensus_ = measure_consensus();
    if (is_due(config_.log_every) || is_due(config_.consensus_every)) write_step(folder);
    if (is_due(config_.eval_every) && step_ < total_steps_) write_evaluation(folder, evaluate());
  }
  close_checkpoints(folder);
  finish(folder);
}

void TrainingLoop::finish(RunFolder* folder) {
  model_.drain();
  const PipelineMetrics metrics = total_metrics();
  std::vector<double> sums =
      sum_over_ranks(setup_.communicator, {forward_s_, backward_s_ - metrics.pipeline_s,
                                           metrics.wait_s, metrics.update_s, metrics.bytes_sent,
                                           train_s_, static_cast<double>(num_samples_)});
  const double num_samples = sums[6];
  // Means over ranks, per step.
  for (double& sum : sums) sum /= setup_.world.size * static_cast<double>(total_steps_);
  const double train_s = sums[5] * static_cast<double>(total_steps_);
  std::uint64_t sum = 0;
  for (const torch::Tensor& parameter : model_.parameters()) {
    sum = sum * 31 + checksum(block_of_tensor(parameter.cpu()));
  }
  const std::vector<std::string> checksums = setup_.communicator.all_gather(concat(std::hex, sum));

  const Evaluation evaluation = evaluate([&] { save(folder); });
  const Summary summary{.world_size = setup_.world.size,
                        .steps = total_steps_,
                        .accuracy_mean_model = evaluation.mean_model.accuracy(),
                        .accuracy_worst_local = evaluation.worst_local,
                        .accuracy_mean_local = evaluation.mean_local,
                        .loss_mean_model = evaluation.mean_model.loss(),
                        .consensus_distance = evaluation.consensus_distance,
                        .train_s = train_s,
                        .samples_per_s = num_samples / train_s,
                        .forward_ms = 1e3 * sums[0],
                        .backward_ms = 1e3 * sums[1],
                        .wait_ms = 1e3 * sums[2],
                        .update_ms = 1e3 * sums[3],
                        .bytes_sent_per_step = sums[4]};
  jointly_slow(setup_.communicator, [&] {
    if (folder != nullptr) write_end(*folder, evaluation, summary, checksums);
    return true;
  });
  if (folder == nullptr) return;
  progress_.end_line();
  if (!setup_.observer) print_summary(summary, folder->path());
}

void TrainingLoop::write_end(RunFolder& folder, const Evaluation& evaluation,
                             const Summary& summary, const std::vector<std::string>& checksums) {
  write_evaluation(&folder, evaluation);
  Json record = to_json(summary);
  record["parameter_checksums"] = checksums;
  folder.write_metrics(record);
  folder.write_status(status("done"), /*sync=*/true);
}

}  // namespace gossamer::apps
