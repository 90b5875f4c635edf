#pragma once
// What the training of a rank starts from. The parts of a TrainingLoop share one object: when the
// world changes, `world`, `logger` and `joins` change for all of them.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/data/dataset.hpp"
#include "apps/records/progress_line.hpp"
#include "apps/train/stop_signals.hpp"
#include "base/log.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

struct TrainingSetup {
  Communicator& communicator;
  World world;
  Logger logger;
  std::shared_ptr<const Dataset> data;
  /// True: the loop traces and plans only; see DataParallelOptions.
  bool dry_run = false;
  /// On rank 0 the loop calls `observer` with every record of a step. A loop with an observer
  /// writes neither the progress nor the table at the end to the terminal.
  std::function<void(const ProgressState&)> observer = nullptr;
  /// Signals that end the run; null: none. Either all ranks have them or none. They must outlive
  /// the loop.
  const StopSignals* stop = nullptr;
  /// True: the loop saves checkpoints as the configuration says. That needs `stop`.
  bool saves_checkpoints = false;
  /// True: run() continues from a checkpoint, so initial values do not matter.
  bool resumes = false;
  /// True: all ranks continue from the mean of the states of the checkpoint's ranks.
  bool reshapes = false;
  /// Things that went wrong before the loop, for status.json.
  std::vector<std::string> faults = {};
  /// True: this rank joins others that train (Communicator::is_elastic()). Constructors are not
  /// collective then.
  bool joins = false;
  /// The command that continues a run of `size` ranks. `resume` is `gossamer train --resume RUN`.
  /// Null: the advice is for threads, or for mpirun under MPI.
  std::function<std::string(const std::string& resume, int size)> resume_command = nullptr;

  [[nodiscard]] bool is_first() const { return world.rank == 0; }
  /// Says whether processes that ask to join are let in from now on, where the run is elastic.
  void admit(bool admits) const {
    if (Elastic* const elastic = communicator.elastic()) elastic->admit(admits);
  }
};

}  // namespace gossamer::apps
