#pragma once
// The folder of a run: config.yaml (resolved), metrics.jsonl (one JSON object a line), status.json
// (what the run is doing), model.safetensors (the mean model at the end), and .lock, which the run
// holds while it lives. Rank 0 alone writes it.

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/train/folder_lock.hpp"
#include "base/options.hpp"
#include "core/torch/parameters.hpp"

namespace gossamer::apps {

using Json = nlohmann::ordered_json;

/// Writes a file whole or not at all; see WholeFile. The error of one that cannot be written tells
/// to set `folder_key`. Throws CheckpointError.
void write_file(const std::string& path, const std::string& text, std::string_view folder_key,
                bool sync = true);

/// What happens when the folder holds a finished run.
enum class IfFinished : std::uint8_t {
  /// An error says what to type.
  kRefuse,
  /// The new run takes its place.
  kReplace,
  /// The new run goes into path-2, path-3 and so on, and so it does while another run writes the
  /// folder.
  kNextNumber,
};

/// Throws what RunFolder would refuse the folder with, as far as can be said without its lock.
void check_run_folder(const std::string& path, IfFinished if_finished);

/// A run that has not finished is always replaced. What an earlier run has left stays until the new
/// one has something to write, so a run that fails at once costs nothing.
class RunFolder {
 public:
  /// Makes the folder and takes its lock. Throws CheckpointError, also while another run has it.
  RunFolder(const std::string& path, std::vector<ResolvedValue> config, IfFinished if_finished);

  /// Appends one line. Numbers that are not finite become null.
  void write_metrics(const Json& record);
  /// The tensors are on the host.
  void write_model(const std::vector<NamedTensor>& tensors);
  /// Says nothing while an earlier run's files are here. With `sync` it survives a machine that
  /// goes down.
  void write_status(const Json& status, bool sync) const;

  [[nodiscard]] std::string model_path() const { return path_ + "/model.safetensors"; }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// A run was here before.
  [[nodiscard]] bool replaces_earlier_run() const { return replaces_; }
  /// What the user should know about the folder, a sentence each.
  [[nodiscard]] const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  /// Takes the lock of path_. Returns why it cannot be had; empty: it could.
  std::string try_claim(bool replace);
  void claim_next_number();
  /// A run whose status says `running` although nobody holds the lock has died.
  void correct_status();
  /// Removes what an earlier run has left, and writes the configuration.
  void begin();
  [[nodiscard]] std::string status_path() const { return path_ + "/status.json"; }
  [[nodiscard]] std::string metrics_path() const { return path_ + "/metrics.jsonl"; }

  std::string path_;
  std::vector<ResolvedValue> config_;
  std::unique_ptr<FolderLock> lock_;
  std::vector<std::string> remarks_;
  bool replaces_ = false;
  bool begun_ = false;
  std::ofstream metrics_;
};

}  // namespace gossamer::apps
