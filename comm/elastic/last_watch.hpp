#pragma once
// Ends a process that is out of its run and does not leave by itself, as one whose thread waits for
// ever in a collective of another library.
//
// Protocol: arm() when it is known that the process is out, then disarm() when it leaves. The call
// comes `grace` after the first arm(), on a thread of the watch.
//
// Thread safety: any thread may call anything. disarm() waits for a call under way.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace gossamer::membership {

class LastWatch {
 public:
  /// Is called with the reason.
  using End = std::function<void(const std::string&)>;

  LastWatch(std::chrono::milliseconds grace, End end) : grace_(grace), end_(std::move(end)) {}
  LastWatch(const LastWatch&) = delete;
  LastWatch& operator=(const LastWatch&) = delete;
  ~LastWatch() { disarm(); }

  /// A later reason takes the place of an earlier one.
  void arm(const std::string& why);
  [[nodiscard]] bool is_armed();
  void disarm();

 private:
  std::chrono::milliseconds grace_;
  End end_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_disarmed_ = false;  // guarded by mutex_
  std::string why_;           // likewise
  std::thread thread_;        // likewise, but for join()
};

/// The end of a rank's process: says why, and ends it with the code of a rank that has lost others.
[[noreturn]] void end_process(const std::string& why);

}  // namespace gossamer::membership
