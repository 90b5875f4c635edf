#pragma once
// The folder of a run:
//   config.yaml         all values of the configuration
//   metrics.jsonl       one JSON object per line
//   status.json         the state of the run
//   environment.json    versions and hosts
//   events.out.tfevents.*    with log.tensorboard: the records for TensorBoard
//   report.html         the run on one page
//   model.safetensors   the mean model at the end
//   model_best.safetensors   with log.eval_every: the mean model of the least loss
//   model_ema.safetensors    with train.ema: the moving average of the mean model
//   checkpoints/        see Checkpointer
//   .lock               the run holds this lock while it lives
// Only rank 0 writes the folder, except for checkpoints.
//
// Not thread safe. Errors: CheckpointError.

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/records/event_file.hpp"
#include "apps/records/folder_lock.hpp"
#include "base/options.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

using Json = nlohmann::ordered_json;

/// Writes a file whole or not at all, with `sync` as in WholeFile::keep(). Throws CheckpointError
/// with the advice to set `folder_key`.
void write_file(const std::string& path, const std::string& text, std::string_view folder_key,
                bool sync = true);

/// What happens if the folder holds a finished run.
enum class IfFinished : std::uint8_t {
  /// CheckpointError, with the words to type.
  kRefuse,
  /// The new run replaces the finished one.
  kReplace,
  /// The new run goes into path-2, path-3 and so on; also if another run writes the folder.
  kNextNumber,
  /// The run in the folder continues, finished or not; see RunFolder::resume().
  kContinue,
  /// The run goes on with another process in place of the one that wrote the folder, which may
  /// still have the lock; see RunFolder::take_over().
  kTakeOver,
};

/// What a user does about a folder that is refused.
struct FolderWords {
  /// The text before the path of another folder.
  std::string_view keep = "type run.output_dir=";
  /// The text before the path of the refused folder.
  std::string_view go_on = "type --resume ";
  std::string_view replace = "type --overwrite";
};

/// The page about a run.
inline constexpr std::string_view kReportName = "report.html";

/// status.json of the folder of a run; null when there is none that can be read.
Json read_status(const std::string& folder);
/// Replaces status.json whole.
void write_status_file(const std::string& folder, const Json& status, bool sync = true);

/// The folder of a run's checkpoints.
std::string checkpoint_folder(const std::string& run);

/// The folders among `path`, path-2, path-3 and so on that hold checkpoints of a run that has not
/// finished and that no other run writes. The folder with the newest checkpoint comes first.
std::vector<std::string> unfinished_runs(const std::string& path);

/// Changes run.output_dir among the values of a configuration.
void set_output_dir(std::vector<ResolvedValue>& config, const std::string& path);

/// Throws the error with which RunFolder would refuse the folder. Checks only what needs no lock:
/// whether the folder holds a finished run.
void check_run_folder(const std::string& path, IfFinished if_finished);

/// Replaces a run that has not finished, unless the run has checkpoints. The files of an earlier
/// run stay until the new run has its first record or model to write, so a run that fails at once
/// destroys nothing.
class RunFolder {
 public:
  static constexpr std::string_view kModel = "model.safetensors";
  static constexpr std::string_view kBestModel = "model_best.safetensors";
  static constexpr std::string_view kEmaModel = "model_ema.safetensors";

  /// Makes the folder and takes its lock. Throws CheckpointError, also if another run has the lock
  /// and `if_finished` is not kNextNumber. `environment` is the content of environment.json; null:
  /// there is no such file.
  RunFolder(const std::string& path, std::vector<ResolvedValue> config, IfFinished if_finished,
            Json environment = nullptr, const FolderWords& words = {});

  /// Removes the files of an earlier run, and writes the configuration. Only the first call does.
  /// The other functions that write call it.
  void begin();
  /// Continues the run that is in the folder: metrics.jsonl keeps its first `metrics_bytes` bytes.
  /// `step` is its last step. Call it before the first write. The configuration stays until
  /// write_configuration().
  void resume(std::int64_t metrics_bytes, std::int64_t step);
  /// Like resume(), with the records of all steps up to `step`, but none of the end of the run.
  /// Returns the last of these records; null if there is none.
  Json resume_after(std::int64_t step);
  /// Continues the run that is in the folder, with all that its writer has written up to `step`.
  /// metrics.jsonl becomes a copy, so records that the earlier writer still writes are not in it.
  void take_over(std::int64_t step);
  void write_configuration() const;
  /// Records also go into an event file of TensorBoard. Call it before the first write.
  void use_tensorboard() { tensorboard_ = true; }
  /// Adds to environment.json, if there is one, what has become known since the start.
  void note(std::string_view key, Json value);
  /// Size of metrics.jsonl.
  [[nodiscard]] std::int64_t metrics_bytes() const;

  /// Appends one line. Numbers that are not finite become null. After an error the file is as
  /// before.
  void write_metrics(const Json& record);
  /// Whether one of the last records of metrics.jsonl has the kind and the step of this one; among
  /// records of members, also its epoch.
  [[nodiscard]] bool has_record(const Json& like) const;
  /// Where the caller shall write a file of this name.
  std::string begin_file(std::string_view name);
  /// Replaces the best model by the file `saved`; leaves it if there is no such file. Empty:
  /// removes the best model.
  void replace_best(const std::string& saved) const;
  /// Writes status.json; does nothing while the folder still holds the files of an earlier run.
  /// With `sync` the file survives a crash of the machine.
  void write_status(const Json& status, bool sync) const;

  [[nodiscard]] std::string model_path() const { return concat(path_, "/", kModel); }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// True if the folder held the files of an earlier run.
  [[nodiscard]] bool replaces_earlier_run() const { return replaces_; }
  /// Sentences about the folder for the user.
  [[nodiscard]] const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  /// Takes the lock of path_. Returns the reason if that is impossible, otherwise an empty text.
  std::string try_claim(bool replace, bool takes_over = false);
  void claim_next_number();
  /// Changes the state of a dead run to `died`: it is `running` although no process holds the lock.
  void correct_status();
  void write_environment() const;
  /// Throws where the file cannot be written, or where `failure` says that it could not be
  /// prepared.
  void open_metrics(std::error_code failure);
  /// Appends the numbers of a record to the event file.
  void write_event(const Json& record);
  [[nodiscard]] std::string status_path() const { return path_ + "/status.json"; }
  [[nodiscard]] std::string metrics_path() const { return path_ + "/metrics.jsonl"; }

  std::string path_;
  std::vector<ResolvedValue> config_;
  std::unique_ptr<FolderLock> lock_;
  std::vector<std::string> remarks_;
  bool replaces_ = false;
  bool begun_ = false;
  std::ofstream metrics_;
  Json environment_;
  bool tensorboard_ = false;
  /// The step after which the run has been resumed.
  std::int64_t first_step_ = 0;
  std::optional<EventFile> events_;
};

}  // namespace gossamer::apps
