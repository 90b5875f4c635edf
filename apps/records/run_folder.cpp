#include "apps/records/run_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <utility>

#include "apps/records/json.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/open_file.hpp"
#include "core/checkpoint/whole_file.hpp"

namespace gossamer::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderKey = "run.output_dir";
constexpr std::string_view kEvents = "events.out.tfevents.";
constexpr std::string_view kFinished = "holds a finished run";
constexpr std::string_view kUnfinished = "holds checkpoints of a run that has not finished";

/// Never throws: bytes that are no UTF-8, in a path for example, become marks.
std::string text_of(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

bool holds_finished_run(const std::string& folder) {
  const Json status = read_status(folder);
  const std::string state = text_in(status, "state");
  if (state == "done") return true;
  if (!fs::exists(folder + "/model.safetensors")) return false;
  // The model is saved before its evaluation, in which the run may have ended.
  return state.empty() || list_checkpoints(checkpoint_folder(folder)).empty();
}

/// Why a new run must not replace what is in a folder; empty if it may.
std::string why_keep(const std::string& folder) {
  if (holds_finished_run(folder)) return std::string(kFinished);
  return list_checkpoints(checkpoint_folder(folder)).empty() ? "" : std::string(kUnfinished);
}

std::string without_slash_at_end(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

/// `name`, `name-2`, `name-3` and so on.
bool is_numbered(const std::string& folder, const std::string& name) {
  if (folder == name) return true;
  int number = 0;
  return folder.starts_with(name + "-") &&
         parse_whole(std::string_view(folder).substr(name.size() + 1), number) && number > 1;
}

bool is_being_written(const std::string& folder) {
  try {
    return !FolderLock(folder).holder().empty();
  } catch (const CheckpointError&) {
    // This run could not write it, either.
    return true;
  }
}

std::string next_free(const std::string& path) {
  for (int number = 2;; ++number) {
    std::string next = concat(path, "-", number);
    if (!fs::exists(next)) return next;
  }
}

[[noreturn]] void refuse(const std::string& path, const std::string& why,
                         const FolderWords& words) {
  const bool may_go = why == kFinished || why == kUnfinished;
  throw CheckpointError(concat(
      path, " ", why, ". To ", may_go ? "keep it" : "leave it alone", ", ", words.keep,
      next_free(path), why == kUnfinished ? concat("; to continue it, ", words.go_on, path) : "",
      may_go ? concat("; to replace it, ", words.replace) : ""));
}

}  // namespace

void write_file(const std::string& path, const std::string& text, std::string_view folder_key,
                bool sync) {
  try {
    write_whole_file(path, text, sync);
  } catch (const CheckpointError& error) {
    throw CheckpointError(concat(error.what(), ". Another folder: ", folder_key, "=PATH"));
  }
}

Json read_status(const std::string& folder) {
  return json_file_or_null<Json>(folder + "/status.json");
}

void write_status_file(const std::string& folder, const Json& status, bool sync) {
  write_file(folder + "/status.json", text_of(status, 2), kFolderKey, sync);
}

void check_run_folder(const std::string& path, IfFinished if_finished) {
  const std::string folder = without_slash_at_end(path);
  if (if_finished != IfFinished::kRefuse) return;
  if (const std::string why = why_keep(folder); !why.empty()) refuse(folder, why, {});
}

std::string checkpoint_folder(const std::string& run) { return run + "/checkpoints"; }

std::vector<std::string> unfinished_runs(const std::string& path) {
  const fs::path first = without_slash_at_end(path);
  const fs::path parent = first.has_parent_path() ? first.parent_path() : fs::path(".");
  const std::string name = first.filename().string();
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(parent, failure)) {
    const std::string folder = entry.path().filename().string();
    if (!is_numbered(folder, name)) continue;
    const std::string run = first.string() + folder.substr(name.size());
    const std::vector<std::string> checkpoints = list_checkpoints(checkpoint_folder(run));
    if (checkpoints.empty() || holds_finished_run(run) || is_being_written(run)) continue;
    found.emplace_back(fs::last_write_time(checkpoints.back(), failure), run);
  }
  std::ranges::sort(found, std::greater());
  std::vector<std::string> runs;
  for (const auto& [unused, run] : found) runs.push_back(run);
  return runs;
}

void set_output_dir(std::vector<ResolvedValue>& config, const std::string& path) {
  for (ResolvedValue& value : config) {
    if (value.path == kFolderKey) value.value = quoted_text(path);
  }
}

RunFolder::RunFolder(const std::string& path, std::vector<ResolvedValue> config,
                     IfFinished if_finished, Json environment, const FolderWords& words)
    : path_(without_slash_at_end(path)),
      config_(std::move(config)),
      environment_(std::move(environment)) {
  if (if_finished == IfFinished::kNextNumber) {
    claim_next_number();
  } else if (const auto why = try_claim(if_finished != IfFinished::kRefuse,
                                        if_finished == IfFinished::kTakeOver);
             !why.empty()) {
    refuse(path_, why, words);
  }
  if (!lock_->held() && if_finished != IfFinished::kTakeOver) {
    remarks_.push_back(concat("the file system of ", path_, " has no locks (", lock_->why_none(),
                              "); see to it that no other run writes that folder"));
  }
  replaces_ = fs::exists(metrics_path()) || fs::exists(model_path()) || fs::exists(status_path());
  if (if_finished == IfFinished::kTakeOver) return;
  if (if_finished == IfFinished::kContinue) {
    // The checkpoint of a loop in Python may lie here alone. It stays.
    std::ofstream(metrics_path(), std::ios::app);
    correct_status();
  } else if (replaces_) {
    correct_status();
  } else {
    begin();
  }
}

std::string RunFolder::try_claim(bool replace, bool takes_over) {
  if (const std::string why = why_keep(path_); !replace && !why.empty()) return why;
  std::error_code failure;
  fs::create_directories(path_, failure);
  if (failure) {
    throw CheckpointError(concat(path_, ": the run's folder cannot be made: ", failure.message(),
                                 ". Another folder: ", kFolderKey, "=PATH"));
  }
  auto lock = std::make_unique<FolderLock>(path_);
  if (!lock->holder().empty() && !takes_over) {
    return concat("belongs to another run that is under way (", lock->holder(), ")");
  }
  // Once more: a run may have ended in between.
  if (const std::string why = why_keep(path_); !replace && !why.empty()) return why;
  if (lock->held()) {
    // What runs that were killed have left.
    for (const auto& entry : fs::directory_iterator(path_, failure)) {
      if (is_partial_name(entry.path().filename().string())) fs::remove(entry.path(), failure);
    }
  }
  lock_ = std::move(lock);
  return "";
}

void RunFolder::claim_next_number() {
  const std::string first = path_;
  std::string why_not_first;
  for (int number = 2;; ++number) {
    const std::string why = try_claim(false);
    if (why.empty()) break;
    if (number == 2) why_not_first = why;
    path_ = concat(first, "-", number);
  }
  if (path_ == first) return;
  remarks_.push_back(concat(first, " ", why_not_first, "; this run goes into ", path_));
  set_output_dir(config_, path_);
}

void RunFolder::correct_status() {
  Json status = read_status(path_);
  if (!lock_->held() || text_in(status, "state") != "running") return;
  status["state"] = "died";
  status["message"] =
      "the run ended without a message; perhaps it was killed, or the machine went down";
  write_status_file(path_, status);
  remarks_.push_back(
      concat("the run that was in ", path_, " died after step ", text_in(status, "step")));
}

void RunFolder::begin() {
  if (std::exchange(begun_, true)) return;
  std::error_code failure;
  fs::remove(status_path(), failure);
  for (const std::string_view name : {kModel, kBestModel, kEmaModel}) {
    fs::remove(concat(path_, "/", name), failure);
  }
  fs::remove_all(checkpoint_folder(path_), failure);
  fs::remove(concat(path_, "/", kReportName), failure);
  for (const auto& entry : fs::directory_iterator(path_, failure)) {
    if (entry.path().filename().string().starts_with(kEvents)) fs::remove(entry.path(), failure);
  }
  write_configuration();
  // A pipe in its place stays: its reader takes the records.
  std::error_code cut;
  if (fs::is_regular_file(metrics_path(), failure)) fs::resize_file(metrics_path(), 0, cut);
  open_metrics(cut);
}

void RunFolder::open_metrics(std::error_code failure) {
  metrics_.close();
  metrics_.clear();
  metrics_.open(metrics_path(), std::ios::app);
  if (failure || !metrics_) throw CheckpointError(concat(metrics_path(), " cannot be written"));
}

void RunFolder::write_configuration() const {
  write_file(path_ + "/config.yaml", to_yaml(config_), kFolderKey);
  write_environment();
}

void RunFolder::write_environment() const {
  if (environment_.is_null()) return;
  write_file(path_ + "/environment.json", text_of(environment_, 2), kFolderKey);
}

void RunFolder::note(std::string_view key, Json value) {
  if (environment_.is_null()) return;
  environment_[std::string(key)] = std::move(value);
  if (begun_) write_environment();
}

void RunFolder::resume(std::int64_t metrics_bytes, std::int64_t step) {
  begun_ = true;
  first_step_ = step;
  std::error_code failure;
  const auto size = static_cast<std::int64_t>(fs::file_size(metrics_path(), failure));
  if (!failure && size > metrics_bytes) {
    // Records of steps that are made again.
    fs::resize_file(metrics_path(), static_cast<std::uintmax_t>(metrics_bytes), failure);
  }
  open_metrics(failure);
}

Json RunFolder::resume_after(std::int64_t step) {
  std::ifstream file(metrics_path(), std::ios::binary);
  std::int64_t num_bytes = 0;
  Json last;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    auto record = json_or_null<Json>(line);
    if (!record.is_object() || text_in(record, "kind") == "final") break;
    if (record.value("step", std::int64_t{0}) > step) break;
    num_bytes += std::ssize(line) + 1;
    last = std::move(record);
  }
  resume(num_bytes, step);
  return last;
}

void RunFolder::take_over(std::int64_t step) {
  std::string text;
  std::error_code failure;
  if (fs::is_regular_file(metrics_path(), failure)) {
    std::ifstream file(metrics_path(), std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    // The last line may be cut off.
    text.resize(text.rfind('\n') + 1);
    try {
      // A writer that was taken for dead, and wakes up, still has the old file. Its record is not
      // lost: another rank has that record too.
      write_whole_file(metrics_path(), text, /*sync=*/true);
    } catch (const CheckpointError&) {
      // A full disk must not end the run. The old file goes on.
    }
  }
  resume(std::ssize(text), step);
}

std::int64_t RunFolder::metrics_bytes() const {
  std::error_code failure;
  return static_cast<std::int64_t>(fs::file_size(metrics_path(), failure));
}

void RunFolder::write_metrics(const Json& record) {
  begin();
  const std::int64_t before = metrics_bytes();
  metrics_ << text_of(record, -1) << std::flush;
  if (!metrics_) {
    // Without the part of the line that had room, later records can follow.
    metrics_.close();
    std::error_code failure;
    fs::resize_file(metrics_path(), static_cast<std::uintmax_t>(before), failure);
    metrics_.clear();
    metrics_.open(metrics_path(), std::ios::app);
    throw CheckpointError(concat(metrics_path(), " cannot be written; is the disk full?"));
  }
  if (tensorboard_) write_event(record);
}

bool RunFolder::has_record(const Json& like) const {
  // Far more bytes than the records of a few steps.
  constexpr std::int64_t kTailBytes = std::int64_t{1} << 18;
  const auto equals = [&like](const Json& record, const char* key) {
    return record.value(key, Json()) == like.value(key, Json());
  };
  std::ifstream file(metrics_path(), std::ios::binary);
  file.seekg(std::max<std::int64_t>(metrics_bytes() - kTailBytes, 0));
  for (std::string line; std::getline(file, line);) {
    // The first line of the tail may be cut off.
    const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !equals(record, "kind") || !equals(record, "step")) continue;
    if (record.value("kind", "") != "members" || equals(record, "epoch")) return true;
  }
  return false;
}

void RunFolder::write_event(const Json& record) {
  const std::string kind = record.value("kind", "");
  if (kind != "step" && kind != "eval") return;
  EventFile::Values values;
  for (const auto& [key, value] : record.items()) {
    if (key == "step") continue;
    if (value.is_number()) {
      values.emplace_back(concat(kind == "step" ? "train/" : "eval/", key), value.get<double>());
    }
    for (std::size_t rank = 0; value.is_array() && rank < value.size(); ++rank) {
      if (!value[rank].is_number()) continue;
      values.emplace_back(concat(key, "/", rank), value[rank].get<double>());
    }
  }
  if (!events_) events_.emplace(path_, first_step_);
  events_->write(record.value("step", std::int64_t{0}), values);
}

std::string RunFolder::begin_file(std::string_view name) {
  begin();
  return concat(path_, "/", name);
}

void RunFolder::replace_best(const std::string& saved) const {
  const std::string path = concat(path_, "/", kBestModel);
  std::error_code failure;
  if (saved.empty()) {
    fs::remove(path, failure);
  } else if (fs::exists(saved)) {
    copy_whole_file(OpenFile(saved), path);
  }
}

void RunFolder::write_status(const Json& status, bool sync) const {
  if (begun_) write_status_file(path_, status, sync);
}

}  // namespace gossamer::apps
