#pragma once
// What a rank sets up before its TrainingLoop, whoever starts the training: `gossamer train` or a
// study.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apps/data/dataset.hpp"
#include "apps/train/run_config.hpp"

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

/// Collective: the data of this rank. Loading may take as long as it likes. Throws JointFailure
/// when it fails anywhere, and ConfigError when ranks have found data of other sizes.
std::shared_ptr<const Dataset> load_together(Communicator& communicator, SharedData& data,
                                             const RunConfig& config);

/// One `path: value` a line: what ranks compare.
std::string lines_of(const std::vector<ResolvedValue>& values);

/// The share of a rank in the cores of its host, at least 1.
std::int64_t compute_threads(const Placement& placement, std::int64_t num_cores);

/// Sets LibTorch's threads for this rank: as the configuration says (run.threads), or this rank's
/// share of the cores of its host.
void set_compute_threads(const RunConfig& config, const World& world);

}  // namespace gossamer::apps
