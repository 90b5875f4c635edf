#pragma once
// Operations for tests of the progress worker: they do what the test says.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/stream.hpp"
#include "comm/worker/progress_worker.hpp"

namespace gossamer {

/// Shared by a test and its operations.
struct Script {
  std::mutex mutex;
  std::vector<int> started;
  std::atomic<int> num_tests = 0;
  std::atomic<int> num_destroyed = 0;
  std::atomic<unsigned> may_end = 0;     // bit i: operation i
  std::atomic<unsigned> holds_next = 0;  // bit i: operation i
  std::atomic<unsigned> messages = 0;    // bit i: operation i
  std::atomic<unsigned> is_woken = 0;    // bit i: operation i
  std::atomic<unsigned> moves = 0;       // bit i: operation i has moved a byte at every look
  std::atomic<std::int64_t> num_moved = 0;
};

class ScriptedOperation : public Operation {
 public:
  ScriptedOperation(Script& script, int number) : script_(script), number_(number) {}
  ~ScriptedOperation() override { ++script_.num_destroyed; }
  void start() override {
    const std::lock_guard lock(script_.mutex);
    script_.started.push_back(number_);
  }
  bool test() override {
    ++script_.num_tests;
    return is_set(script_.may_end);
  }
  [[nodiscard]] bool lets_next_start() const override { return !is_set(script_.holds_next); }
  [[nodiscard]] bool is_tagged() const override { return is_set(script_.messages); }
  [[nodiscard]] bool is_woken() const override { return is_set(script_.is_woken); }
  [[nodiscard]] std::vector<int> waiting_for() const override { return {number_}; }
  [[nodiscard]] std::vector<int> linked_with() const override { return {number_, number_ + 1}; }
  [[nodiscard]] Progress progress() const override {
    if (is_set(script_.moves)) ++script_.num_moved;
    return {.moved = script_.num_moved, .total = 1'000'000'000};
  }

 private:
  /// This operation's bit.
  [[nodiscard]] bool is_set(const std::atomic<unsigned>& bits) const {
    return (bits.load() >> static_cast<unsigned>(number_) & 1U) != 0;
  }

  Script& script_;
  int number_;
};

/// Happens when the test says so.
class ScriptedEvent : public Event {
 public:
  void happen() { done_ = true; }
  [[nodiscard]] bool done() const override { return done_; }
  void wait() const override {
    while (!done_) std::this_thread::yield();
  }

 private:
  std::atomic<bool> done_ = false;
};

inline std::unique_ptr<Operation> scripted(Script& script, int number) {
  return std::make_unique<ScriptedOperation>(script, number);
}

/// Waits until the operations `numbers` have started, in this order, and no other one.
inline void expect_started(Script& script, const std::vector<int>& numbers) {
  const auto started = [&script] {
    const std::lock_guard lock(script.mutex);
    return script.started;
  };
  for (int turn = 0; turn < 2'000 && started() != numbers; ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Whatever should not have started has had some turns to do so.
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(started(), numbers);
}

}  // namespace gossamer
