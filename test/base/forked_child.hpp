#pragma once
// A child of fork() for tests. It does not go through the test program's end.

#include <chrono>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gossamer {

class ForkedChild {
 public:
  enum Waits { kLives };

  /// A child that lives until this object goes, or its parent.
  explicit ForkedChild(Waits /*waits*/) : pid_(fork()) {
    if (pid_ != 0) return;
    // The parent may die without a word.
    while (getppid() == parent_) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    _exit(0);
  }
  /// A child that calls `work` and exits with what it returns.
  explicit ForkedChild(const std::function<int()>& work) : pid_(fork()) {
    if (pid_ == 0) _exit(work());
  }
  ~ForkedChild() {
    if (is_over_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  ForkedChild(const ForkedChild&) = delete;
  ForkedChild& operator=(const ForkedChild&) = delete;

  [[nodiscard]] bool lives() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }
  /// The exit code; -1 for a child that hangs, or that a signal has ended.
  [[nodiscard]] int code() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) return -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    is_over_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t parent_ = getpid();
  pid_t pid_;
  bool is_over_ = false;
};

}  // namespace gossamer
