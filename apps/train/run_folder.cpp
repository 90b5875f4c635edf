#include "apps/train/run_folder.hpp"

#include <filesystem>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

constexpr std::string_view kFolderKey = "run.output_dir";

}  // namespace

void write_file(const std::string& path, const std::string& text, std::string_view folder_key) {
  const std::string partial = path + ".partial";
  std::ofstream file(partial, std::ios::binary);
  file << text;
  file.close();
  std::error_code failure;
  if (file) std::filesystem::rename(partial, path, failure);
  if (!file || failure) {
    throw CheckpointError(concat(path, " cannot be written; is the disk full, or the folder not ",
                                 "yours? Another folder: ", folder_key, "=PATH"));
  }
}

RunFolder::RunFolder(const std::string& path, const std::vector<ResolvedValue>& config)
    : path_(path) {
  std::error_code failure;
  std::filesystem::create_directories(path, failure);
  if (failure) {
    throw CheckpointError(concat(path, ": the run's folder cannot be made: ", failure.message(),
                                 ". Another folder: run.output_dir=PATH"));
  }
  const std::string metrics = path + "/metrics.jsonl";
  replaced_ = std::filesystem::exists(metrics);
  std::filesystem::remove(model_path(), failure);
  std::filesystem::remove(status_path(), failure);
  write_file(path + "/config.yaml", to_yaml(config), kFolderKey);
  metrics_.open(metrics, std::ios::trunc);
  if (!metrics_) throw CheckpointError(concat(metrics, " cannot be written"));
}

void RunFolder::write_metrics(const Json& record) {
  metrics_ << record.dump() << '\n' << std::flush;
  if (!metrics_) {
    throw CheckpointError(concat(path_, "/metrics.jsonl cannot be written; is the disk full?"));
  }
}

void RunFolder::write_status(const Json& status) const {
  write_file(status_path(), status.dump(2) + "\n", kFolderKey);
}

}  // namespace gossamer::apps
