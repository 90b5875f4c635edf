#pragma once
// What stands around the TrainingLoop in every training, whoever starts it: `gossamer train` or a
// sweep.

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apps/data/dataset.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/run_folder.hpp"
#include "apps/train/training_loop.hpp"

namespace gossamer::apps {

/// The data, loaded by the first rank of this process that asks and shared by all its ranks. All
/// runs that ask one after the other must have the same `data` section; another seed loads anew.
/// Safe from any thread.
class SharedData {
 public:
  /// Throws DataError.
  std::shared_ptr<const Dataset> get(const RunConfig& config);

 private:
  std::mutex mutex_;
  std::shared_ptr<const Dataset> data_;  // guarded by mutex_
  std::uint64_t seed_ = 0;               // guarded by mutex_
};

/// One `path: value` a line: what ranks compare.
std::string lines_of(const std::vector<ResolvedValue>& values);

/// Sets LibTorch's threads for this rank: what the configuration says, or its share of the cores.
void set_compute_threads(const RunConfig& config, const World& world);

/// Collective: trains to the end. What the training fails with is thrown on, after the folder's
/// status says so (nullptr except on rank 0).
void train_into(RunFolder* folder, TrainingLoop& trainer);

}  // namespace gossamer::apps
