#pragma once
// A stream that does its work later, on a thread. It stands for a GPU's stream, so that the thread
// sanitizer finds missing waits. stream.hpp has the protocol, its errors and thread safety.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/stream.hpp"
#include "base/thread.hpp"

namespace gossamer {

/// Does work on a thread of its own. The memory is the host's; blocks of allocate() carry the name
/// of `device`, so the stream can stand for a GPU's.
class ThreadStream : public Stream {
 public:
  explicit ThreadStream(Device device = {})
      : device_(device), thread_(start_thread([this] { work_off(); })) {}
  /// Blocks until all work is done; drops errors.
  ~ThreadStream() override;
  ThreadStream(const ThreadStream&) = delete;
  ThreadStream& operator=(const ThreadStream&) = delete;

  [[nodiscard]] Device device() const override { return device_; }
  [[nodiscard]] bool immediate() const override { return false; }
  [[nodiscard]] bool on_host() const override { return true; }
  void run(std::function<void()> work) override;
  EventPtr record() override;
  void wait(EventPtr event) override;
  void copy(const Block& to, const ConstBlock& from) override;
  void zero(const Block& block) override;
  Buffer allocate(std::int64_t numel, DType dtype) override;
  Buffer allocate_host(std::int64_t numel, DType dtype) override { return {numel, dtype}; }
  void keep(std::shared_ptr<void> owner) override;
  void synchronize() override;
  void check() override;

 private:
  void work_off();

  Device device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::exception_ptr error_;                 // guarded by mutex_
  std::thread thread_;
};

}  // namespace gossamer
