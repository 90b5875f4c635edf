#include "apps/records/left_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "apps/records/folder_lock.hpp"
#include "apps/records/json.hpp"
#include "apps/records/run_folder.hpp"

namespace gossamer::apps {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks.
constexpr auto kTurn = std::chrono::milliseconds(50);
// A rank tries so much later than the one before, up to the 20th.
constexpr auto kStagger = std::chrono::milliseconds(50);
constexpr int kLastStagger = 20;

/// True: no rank has written yet how the run has ended.
bool is_open(const LeftFolder& folder, const Json& status) {
  return text_in(status, "state") == "running" && text_in(status, "writer") == folder.writer;
}

}  // namespace

bool write_end_of(const LeftFolder& folder, const RunEnd& end, std::chrono::milliseconds patience,
                  const LockFunction& lock) {
  if (folder.path.empty()) return false;
  const auto last_look = Clock::now() + patience;
  std::this_thread::sleep_for(std::min(end.rank, kLastStagger) * kStagger);
  for (bool is_late = false; !is_late;) {
    is_late = Clock::now() >= last_look;
    Json status = read_status(folder.path);
    if (!is_open(folder, status)) return false;
    try {
      const FolderLock own(folder.path, lock);
      if (own.holder().empty() || (is_late && folder.ends_together)) {
        status = read_status(folder.path);
        if (!is_open(folder, status)) return false;
        status["state"] = "failed";
        status["message"] = end.message;
        status["exit_code"] = static_cast<int>(end.code);
        write_status_file(folder.path, status);
        return true;
      }
    } catch (const CheckpointError&) {
      // The message of this rank's own error says more.
      return false;
    }
    std::this_thread::sleep_for(kTurn);
  }
  return false;
}

}  // namespace gossamer::apps
