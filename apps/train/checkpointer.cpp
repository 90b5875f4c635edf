#include "apps/train/checkpointer.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "apps/train/agreement.hpp"
#include "apps/train/model_file.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/whole_file.hpp"

namespace gossamer::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kReplaced = ".replaced-";
// The end of the name of a checkpoint that no run is to continue.
constexpr std::string_view kLeftOut = ".left-out";

void rename_folder(const std::string& from, const std::string& to) {
  std::error_code failure;
  fs::rename(from, to, failure);
  if (failure) {
    throw CheckpointError(concat(from, " cannot be renamed to ", to, ": ", failure.message()));
  }
}

/// Whether a whole checkpoint of the same ranks and values is there.
bool is_repeated(const std::string& path, const Manifest& manifest) {
  try {
    const Manifest there = verify_checkpoint(path);
    return there.world_size == manifest.world_size && there.run == manifest.run;
  } catch (const CheckpointError&) {
    return false;
  }
}

/// Gives a checkpoint a name under which no run looks for it. The user may remove it.
void leave_out(const std::string& path) {
  std::string name = concat(path, kLeftOut);
  for (int number = 2; fs::exists(name); ++number) name = concat(path, kLeftOut, "-", number);
  rename_folder(path, name);
}

/// Gives a complete staging folder its name, and removes old checkpoints. Returns the name.
std::string complete(const std::string& folder, const std::string& staging,
                     const Manifest& manifest, std::int64_t keep) {
  const std::string path = concat(folder, "/", checkpoint_name(manifest.step));
  write_manifest(staging, manifest);
  try {
    verify_checkpoint(staging);
  } catch (const CheckpointError& error) {
    throw CheckpointError(concat(error.what(),
                                 "; all ranks must see the same folder, and the disk "
                                 "must give back what was written"));
  }
  // A checkpoint of the same step may be there if the run was resumed from an older one, or now has
  // other ranks.
  const std::string replaced = concat(folder, "/", kReplaced, checkpoint_name(manifest.step));
  if (fs::exists(path)) {
    is_repeated(path, manifest) ? rename_folder(path, replaced) : leave_out(path);
  }
  rename_folder(staging, path);
  sync_folder(folder);
  fs::remove_all(replaced);
  const std::vector<std::string> all = list_checkpoints(folder);
  const auto place = std::ranges::find(all, path) - all.begin();
  for (std::int64_t i = 0; i < std::ssize(all); ++i) {
    const std::string& other = all[static_cast<std::size_t>(i)];
    if (i <= place - keep) fs::remove_all(other);
    // Later ones did not verify when the run was resumed. Perhaps only the disk was away.
    if (i > place) leave_out(other);
  }
  return path;
}

}  // namespace

Checkpointer::Checkpointer(Setup setup) : setup_(std::move(setup)), history_(setup_.history) {
  if (setup_.world.rank != 0) return;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(setup_.folder, failure)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kStaging) || name.starts_with(kReplaced)) fs::remove_all(entry, failure);
  }
}

std::string Checkpointer::staging() const {
  return concat(setup_.folder, "/", kStaging, checkpoint_name(*step_));
}

void Checkpointer::start(std::int64_t step, const std::function<void(StateVisitor&)>& visit,
                         std::vector<NamedTensor> model, const std::string& best) {
  collect();
  step_ = step;
  snapshot_.clear();
  visit(snapshot_);
  model_ = std::move(model);
  open_best(best);
  written_ = std::async(std::launch::async, [this] { return write(); });
}

void Checkpointer::open_best(const std::string& best) {
  best_.reset();
  best_error_.clear();
  std::error_code ignored;
  if (best.empty() || !fs::exists(best, ignored)) return;
  try {
    best_.emplace(best);
  } catch (const CheckpointError& error) {
    best_error_ = error.what();
  }
}

Checkpointer::Files Checkpointer::write() const {
  if (!best_error_.empty()) throw CheckpointError(best_error_);
  const std::string folder = staging();
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw CheckpointError(concat(folder, " cannot be made: ", failure.message()));
  Files files;
  const std::string name = rank_file_name(setup_.world.rank);
  files[name] = snapshot_.write(concat(folder, "/", name));
  if (setup_.world.rank == 0) {
    files[kMeanModelName] = write_model_file(concat(folder, "/", kMeanModelName), model_);
  }
  if (best_) {
    const std::string path = concat(folder, "/", kBestModelName);
    copy_whole_file(*best_, path);
    files[kBestModelName] = digest_of_file(path);
  }
  return files;
}

bool Checkpointer::is_written() const {
  return written_.valid() &&
         written_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void Checkpointer::finish() {
  if (!under_way()) return;
  // Others may have to wait for a slow disk.
  all_or_none_slow(setup_.communicator, [this] {
    written_.wait();
    return true;
  });
  nlohmann::json mine = nlohmann::json::object();
  try {
    for (const auto& [name, digest] : written_.get()) {
      mine["files"][name] = {digest.num_bytes, digest.sha256};
    }
  } catch (const CheckpointError& error) {
    mine["error"] = concat("rank ", setup_.world.rank, ": ", error.what());
  }
  Manifest manifest{.step = *step_,
                    .world_size = setup_.world.size,
                    .members = setup_.members,
                    .run = setup_.run};
  error_.clear();
  for (const std::string& text : setup_.communicator.all_gather(mine.dump())) {
    const nlohmann::json part = nlohmann::json::parse(text);
    if (part.contains("error") && error_.empty()) error_ = part["error"];
    if (!part.contains("files")) continue;
    for (const auto& [name, digest] : part["files"].items()) {
      manifest.files[name] = {.num_bytes = digest[0], .sha256 = digest[1]};
    }
  }
  const std::string folder = staging();
  step_.reset();
  if (setup_.world.rank != 0) return;
  completed_ = std::async(std::launch::async, [this, manifest, folder, error = error_] {
    try {
      if (!error.empty()) throw CheckpointError(error);
      return complete(setup_.folder, folder, manifest, setup_.keep);
    } catch (const std::exception&) {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
      throw;
    }
  });
}

void Checkpointer::collect() {
  if (!completed_.valid()) return;
  error_.clear();
  try {
    history_.newest = completed_.get();
    setup_.logger.info(concat("saved ", history_.newest));
  } catch (const std::exception& error) {
    error_ = error.what();
    history_.errors.push_back(error_);
    setup_.logger.warning(concat("a checkpoint could not be saved: ", error_, "; ",
                                 history_.newest.empty()
                                     ? "there is none of this run so far"
                                     : concat("the newest is ", history_.newest)));
  }
}

std::string Checkpointer::wait() {
  finish();
  all_or_none_slow(setup_.communicator, [this] {
    if (completed_.valid()) completed_.wait();
    return true;
  });
  collect();
  return setup_.communicator.all_gather(error_).front();
}

void Checkpointer::collect_if_ready() {
  if (completed_.valid() &&
      completed_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    collect();
  }
}

Checkpointer::History Checkpointer::give_up() {
  if (written_.valid()) written_.wait();
  collect();
  return std::move(history_);
}

const std::string& Checkpointer::newest() {
  collect_if_ready();
  return history_.newest;
}

const std::vector<std::string>& Checkpointer::errors() {
  collect_if_ready();
  return history_.errors;
}

std::string newest_checkpoint(const std::string& folder,
                              const std::function<void(const std::string& error)>& skipped) {
  std::vector<std::string> all = list_checkpoints(folder);
  for (auto path = all.rbegin(); path != all.rend(); ++path) {
    try {
      verify_checkpoint(*path);
      return *path;
    } catch (const CheckpointError& error) {
      skipped(error.what());
    }
  }
  return "";
}

}  // namespace gossamer::apps
