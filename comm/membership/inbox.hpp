#pragma once
// What a process hears over its mesh, in the order in which it came, until its own thread takes it.
//
// Protocol: the inbox starts the mesh. poll() and next() give one event after the other.
// is_disturbed() is true as long as one of the events that wait may change the members.
//
// Thread safety: is_disturbed() from any thread, all else from one.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/log.hpp"
#include "comm/membership/mesh.hpp"
#include "comm/membership/message.hpp"

namespace gossamer::membership {

class Inbox {
 public:
  struct Event {
    std::string from = {};
    /// Nothing: its connection has ended.
    std::optional<Message> message = {};
    /// The members may change.
    bool disturbs = false;
  };

  /// `holds`: those that ask to join wait until admit(true).
  Inbox(std::unique_ptr<Mesh> mesh, Logger logger, bool holds = false);
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  ~Inbox();

  [[nodiscard]] Mesh& mesh() { return *mesh_; }
  [[nodiscard]] bool is_disturbed() const { return num_disturbing_.load() > 0; }
  /// The epoch of this process from now on. Watches over its members. Whoever reports in an earlier
  /// one, or asks to join although it has joined, is told this epoch at once.
  void set_epoch(const Epoch& epoch);
  /// Whether those that ask to join wait no more.
  void admit(bool admits);
  /// The next event, if one is here.
  [[nodiscard]] std::optional<Event> poll();
  /// The next event. Waits for it, at most for `longest`.
  [[nodiscard]] std::optional<Event> next(std::chrono::milliseconds longest);
  /// The next event. Waits for it until `end`, and calls `while_waiting`, if there is one, now and
  /// then; what that throws ends the waiting.
  [[nodiscard]] std::optional<Event> next_before(std::chrono::steady_clock::time_point end,
                                                 const std::function<void()>& while_waiting);

 private:
  void hear(const std::string& from, const std::string& text);
  /// Whether an epoch is news to a process in epoch_.
  [[nodiscard]] bool is_news(const Epoch& epoch) const;
  /// Whether the members of epoch_ may change by it.
  [[nodiscard]] bool disturbs(const Event& event) const;
  void push(Event event);

  std::unique_ptr<Mesh> mesh_;
  Logger logger_;
  std::atomic<int> num_disturbing_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;  // guarded by mutex_
  Epoch epoch_;               // likewise
  bool holds_;                // likewise
  std::deque<Event> held_;    // likewise
};

}  // namespace gossamer::membership
