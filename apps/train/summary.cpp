#include "apps/train/summary.hpp"

#include <cstdio>

#include "base/text.hpp"

namespace gossamer::apps {

void print_summary(const Summary& summary, const Evaluation& evaluation,
                   const std::string& folder) {
  const double step_ms = 1e3 * summary.train_s / static_cast<double>(summary.steps);
  const double other_ms =
      step_ms - summary.forward_ms - summary.backward_ms - summary.wait_ms - summary.update_ms;
  std::printf("\n");
  std::printf("  ranks                        %12d\n", summary.world_size);
  std::printf("  steps                        %12lld\n", static_cast<long long>(summary.steps));
  if (evaluation.mean_model.has_accuracy) {
    std::printf("  accuracy, mean model         %11.2f %%\n",
                100.0 * evaluation.mean_model.accuracy());
    std::printf("  accuracy, worst local model  %11.2f %%\n",
                100.0 * evaluation.accuracy_worst_local);
  }
  std::printf("  loss, mean model             %12.4g\n", evaluation.mean_model.loss());
  if (evaluation.ema) {
    std::printf("  loss, moving average         %12.4g\n", evaluation.ema->loss());
  }
  std::printf("  consensus distance           %12.4g\n", evaluation.consensus_distance);
  std::printf("  samples per second           %12.0f\n", summary.samples_per_s);
  std::printf("  bytes sent per step and rank %12s\n",
              human_bytes(summary.bytes_sent_per_step).c_str());
  if (summary.num_wide_differences > 0) {
    std::printf("  wide differences (codec)     %12lld\n",
                static_cast<long long>(summary.num_wide_differences));
  }
  std::printf("  time per step                %9.2f ms\n", step_ms);
  std::printf("    forward                    %9.2f ms\n", summary.forward_ms);
  std::printf("    backward                   %9.2f ms\n", summary.backward_ms);
  std::printf("    waiting for peers          %9.2f ms\n", summary.wait_ms);
  std::printf("    mix and update             %9.2f ms\n", summary.update_ms);
  std::printf("    batches and the rest       %9.2f ms\n", other_ms);
  std::printf("\n  everything about this run is in %s\n", visible(folder).c_str());
  std::fflush(stdout);
}

}  // namespace gossamer::apps
