#pragma once
// The set-up of a rank before its TrainingLoop. `gossamer train` and the study share it.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "apps/data/dataset.hpp"
#include "apps/train/run_config.hpp"

namespace gossamer::apps {

/// The data of all ranks of this process. The first rank that asks loads them. Runs that ask one
/// after the other must have the same `data` section; another seed loads the data anew. Any thread
/// may call.
class SharedData {
 public:
  /// Throws DataError.
  std::shared_ptr<const Dataset> get(const RunConfig& config);

 private:
  std::mutex mutex_;
  std::shared_ptr<const Dataset> data_;  // guarded by mutex_
  std::uint64_t seed_ = 0;               // guarded by mutex_
};

/// Collective. Returns the data of this rank. Loading may take any time. Throws JointFailure if it
/// fails on any rank, and ConfigError if the ranks have found data of different sizes.
std::shared_ptr<const Dataset> load_together(Communicator& communicator, SharedData& data,
                                             const RunConfig& config);

/// Says which classes the validation samples lack, or have alone, as when the samples of a file are
/// sorted by class and the last ones validate. Empty if there is nothing to say.
std::string validation_warning(const Dataset& data);

/// One line `path: value` for each value, for the comparison between ranks.
std::string lines_of(const std::vector<ResolvedValue>& values);

/// The lines of a run's configuration that must be the same on all ranks that train together. The
/// run's folder is rank 0's.
std::string shared_lines(const RunConfig& config);

/// Seeds LibTorch's generator of random numbers, each process with its own numbers. Ranks that are
/// threads of one process share a generator, so with several of them a model that draws from it,
/// for dropout, does not repeat.
void seed_generator(std::uint64_t seed, const World& world, std::string_view backend);

}  // namespace gossamer::apps
