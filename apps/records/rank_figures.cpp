#include "apps/records/rank_figures.hpp"

#include <cmath>

namespace gossamer::apps {
namespace {

/// `figure` of each rank.
template <class Figures>
std::vector<double> column(const std::vector<Figures>& ranks, double Figures::*figure) {
  std::vector<double> values;
  for (const Figures& rank : ranks) values.push_back(rank.*figure);
  return values;
}

/// `figure` over `of`, of each rank.
template <class Figures>
std::vector<double> ratios(const std::vector<Figures>& ranks, double Figures::*figure,
                           double Figures::*of) {
  std::vector<double> values;
  for (const Figures& rank : ranks) values.push_back(rank.*figure / rank.*of);
  return values;
}

/// The milliseconds that a step of each rank takes, of `seconds` in `steps`.
template <class Figures>
std::vector<double> ms_per_step(const std::vector<Figures>& ranks, double Figures::*seconds,
                                double Figures::*steps) {
  std::vector<double> values;
  for (const Figures& rank : ranks) values.push_back(1e3 / rank.*steps * rank.*seconds);
  return values;
}

double sum_of(const std::vector<double>& numbers) {
  double sum = 0.0;
  for (const double number : numbers) sum += number;
  return sum;
}

}  // namespace

nlohmann::ordered_json window_fields(const std::vector<WindowFigures>& ranks, bool in_step) {
  using Figures = WindowFigures;
  const std::vector<double> samples_per_s = ratios(ranks, &Figures::samples, &Figures::seconds);
  nlohmann::ordered_json fields = {
      {"loss", sum_of(ranks, &Figures::loss) / sum_of(ranks, &Figures::num_losses)},
      {"samples_per_s",
       in_step ? sum_of(ranks, &Figures::samples) / ranks.front().seconds : sum_of(samples_per_s)},
      {"rank_loss", ratios(ranks, &Figures::loss, &Figures::num_losses)},
      {"rank_samples_per_s", samples_per_s},
      {"rank_wait_ms", ms_per_step(ranks, &Figures::wait_s, &Figures::steps)}};
  if (!in_step) fields["rank_steps"] = column(ranks, &Figures::all_steps);
  return fields;
}

Summary summary_of(const std::vector<RunFigures>& ranks, std::int64_t steps) {
  const auto mean = [&ranks](double RunFigures::*figure) {
    return sum_of(ranks, figure) / static_cast<double>(ranks.size());
  };
  const auto step_ms = [&ranks](double RunFigures::*seconds) {
    return ms_per_step(ranks, seconds, &RunFigures::steps);
  };
  const double mean_steps = mean(&RunFigures::steps);
  const double train_s = mean(&RunFigures::train_s);
  return {.world_size = static_cast<int>(ranks.size()),
          .steps = steps,
          .train_s = train_s,
          .samples_per_s = sum_of(ranks, &RunFigures::samples) / train_s,
          .forward_ms = 1e3 * mean(&RunFigures::forward_s) / mean_steps,
          .backward_ms = 1e3 * mean(&RunFigures::backward_s) / mean_steps,
          .wait_ms = 1e3 * mean(&RunFigures::wait_s) / mean_steps,
          .update_ms = 1e3 * mean(&RunFigures::update_s) / mean_steps,
          .bytes_sent_per_step = mean(&RunFigures::bytes_sent) / mean_steps,
          .num_wide_differences = std::llround(sum_of(ranks, &RunFigures::num_wide_differences)),
          .rank_step_ms = step_ms(&RunFigures::train_s),
          .rank_forward_ms = step_ms(&RunFigures::forward_s),
          .rank_backward_ms = step_ms(&RunFigures::backward_s),
          .rank_wait_ms = step_ms(&RunFigures::wait_s),
          .rank_update_ms = step_ms(&RunFigures::update_s)};
}

nlohmann::ordered_json to_json(const Summary& summary) {
  return {{"kind", "final"},
          {"step", summary.steps},
          {"world_size", summary.world_size},
          {"bytes_sent_per_step", summary.bytes_sent_per_step},
          {"wide_differences", summary.num_wide_differences},
          {"train_s", summary.train_s},
          {"samples_per_s", summary.samples_per_s},
          {"forward_ms", summary.forward_ms},
          {"backward_ms", summary.backward_ms},
          {"wait_ms", summary.wait_ms},
          {"update_ms", summary.update_ms},
          {"rank_step_ms", summary.rank_step_ms},
          {"rank_forward_ms", summary.rank_forward_ms},
          {"rank_backward_ms", summary.rank_backward_ms},
          {"rank_wait_ms", summary.rank_wait_ms},
          {"rank_update_ms", summary.rank_update_ms}};
}

}  // namespace gossamer::apps
