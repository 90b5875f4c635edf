#pragma once
// The folder of a run: config.yaml (resolved), metrics.jsonl (one JSON object a line), status.json
// (what the run is doing), model.safetensors (the mean model at the end). Rank 0 alone writes it.

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/options.hpp"

namespace gossamer::apps {

using Json = nlohmann::ordered_json;

/// Writes a file whole or not at all. The error of one that cannot be written tells to set
/// `folder_key`. Throws CheckpointError.
void write_file(const std::string& path, const std::string& text, std::string_view folder_key);

class RunFolder {
 public:
  /// Makes the folder, and replaces what an earlier run has left there. Throws CheckpointError.
  RunFolder(const std::string& path, const std::vector<ResolvedValue>& config);

  /// Appends one line. Numbers that are not finite become null.
  void write_metrics(const Json& record);
  void write_status(const Json& status) const;
  [[nodiscard]] std::string model_path() const { return path_ + "/model.safetensors"; }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// A run was here before.
  [[nodiscard]] bool replaces_earlier_run() const { return replaced_; }

 private:
  [[nodiscard]] std::string status_path() const { return path_ + "/status.json"; }

  std::string path_;
  bool replaced_ = false;
  std::ofstream metrics_;
};

}  // namespace gossamer::apps
