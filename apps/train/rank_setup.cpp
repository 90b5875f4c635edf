#include "apps/train/rank_setup.hpp"

#include <algorithm>
#include <thread>

#include <ATen/Parallel.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

std::shared_ptr<const Dataset> SharedData::get(const RunConfig& config) {
  const std::lock_guard lock(mutex_);
  if (!data_ || seed_ != config.seed) {
    data_ = std::make_shared<const Dataset>(config.data->load(config.seed));
    seed_ = config.seed;
  }
  return data_;
}

std::string lines_of(const std::vector<ResolvedValue>& values) {
  std::vector<std::string> lines;
  for (const ResolvedValue& value : values) lines.push_back(concat(value.path, ": ", value.value));
  return join(lines, "\n");
}

void set_compute_threads(const RunConfig& config, const World& world) {
  const auto cores = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  const std::int64_t share = std::max<std::int64_t>(1, cores / world.local_size);
  at::set_num_threads(static_cast<int>(config.threads > 0 ? config.threads : share));
}

void train_into(RunFolder* folder, TrainingLoop& trainer) {
  try {
    trainer.run(folder);
  } catch (const std::exception& error) {
    if (folder != nullptr) {
      folder->write_status({{"state", "failed"},
                            {"message", error.what()},
                            {"exit_code", static_cast<int>(exit_code_of(error))}});
    }
    throw;
  }
}

}  // namespace gossamer::apps
