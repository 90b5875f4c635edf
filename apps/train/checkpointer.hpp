#pragma once
// Saves checkpoints of a run in the background. A checkpoint is a folder (core/checkpoint): the
// state of every rank, the mean model, the best model so far if there is one, and a manifest.
//
// Protocol, the same on all ranks: start() copies the state. A thread of each rank then writes the
// rank's part into a staging folder while training goes on. ControlSync gives the sum of
// is_written() over all ranks. When all ranks have written, finish() lets rank 0 write the
// manifest, read everything back, give the folder its name, and remove old checkpoints. A process
// that dies at any moment leaves the earlier checkpoints as they are.
//
// All ranks must see the folder. A checkpoint that cannot be saved costs a warning. Errors:
// CommError. Not thread safe.

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/types.hpp"
#include "comm/communicator.hpp"
#include "core/checkpoint/open_file.hpp"
#include "core/checkpoint/state_file.hpp"
#include "core/torch/parameters.hpp"

namespace gossamer::apps {

class Checkpointer {
 public:
  /// The beginning of the names of files and folders that are not complete.
  static constexpr std::string_view kStaging = ".staging-";

  /// What has become of the checkpoints of a run so far; known on rank 0.
  struct History {
    /// The newest that has been saved; empty: none.
    std::string newest = {};
    /// The errors of checkpoints that could not be saved.
    std::vector<std::string> errors = {};
  };

  struct Setup {
    Communicator& communicator;
    World world = {};
    Logger logger = {};
    /// The folder of all checkpoints of the run.
    std::string folder = {};
    /// Number of checkpoints that stay.
    std::int64_t keep = 3;
    /// The configuration, for the manifest.
    std::map<std::string, std::string> run = {};
    /// The members of a run that goes on when ranks die, for the manifest.
    std::vector<std::int64_t> members = {};
    /// The history of an earlier object.
    History history = {};
  };

  /// On rank 0 removes what a run that died has left in staging.
  explicit Checkpointer(Setup setup);
  /// Waits for this rank's files.
  ~Checkpointer() = default;
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// A checkpoint is being written; the same on all ranks.
  [[nodiscard]] bool under_way() const { return step_.has_value(); }
  /// The step of the checkpoint under way.
  [[nodiscard]] std::int64_t step() const { return step_.value(); }
  /// Begins a checkpoint after `step` steps. `visit` shows the rank's state to the visitor. `model`
  /// is the mean model on the host, on rank 0. `best` is the path of the best model, on rank 0; it
  /// may be replaced while the checkpoint is being written. Empty, or no file there: none.
  void start(std::int64_t step, const std::function<void(StateVisitor&)>& visit,
             std::vector<NamedTensor> model, const std::string& best = "");
  /// This rank's part of the checkpoint under way is on the disk, or has failed.
  [[nodiscard]] bool is_written() const;
  /// Collective: ends the checkpoint under way. Waits for parts that are not written yet. Rank 0
  /// goes on in the background.
  void finish();
  /// Collective: waits until nothing is left to do. Returns the error of the last checkpoint; empty
  /// if it has been saved.
  std::string wait();
  /// The newest checkpoint that has been saved; known on rank 0.
  [[nodiscard]] const std::string& newest();
  /// The errors of all checkpoints that could not be saved; known on rank 0.
  [[nodiscard]] const std::vector<std::string>& errors();
  /// Where ranks are lost: waits for what this rank alone is to do, and gives up what needs others.
  /// The last call.
  [[nodiscard]] History give_up();

 private:
  using Files = std::map<std::string, FileDigest>;

  [[nodiscard]] std::string staging() const;
  /// Opens the best model for write(), whatever becomes of its path.
  void open_best(const std::string& best);
  /// Writes this rank's files into the staging folder.
  [[nodiscard]] Files write() const;
  /// On rank 0: takes the result of the background work, and logs it.
  void collect();
  /// Like collect(), if the work has ended.
  void collect_if_ready();

  Setup setup_;
  StateSnapshot snapshot_;
  std::vector<NamedTensor> model_;
  std::optional<OpenFile> best_;
  /// Why the best model cannot be read.
  std::string best_error_;
  /// The step of the checkpoint under way.
  std::optional<std::int64_t> step_;
  /// The error of the last checkpoint.
  std::string error_;
  History history_;
  /// Declared last: their destructors wait for work on the members above.
  std::future<Files> written_;
  std::future<std::string> completed_;
};

/// The newest checkpoint in a folder that verifies; empty if there is none. Calls `skipped` with
/// the error of every newer one.
std::string newest_checkpoint(const std::string& folder,
                              const std::function<void(const std::string& error)>& skipped);

}  // namespace gossamer::apps
