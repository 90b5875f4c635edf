#pragma once
// The queue of events from a process's mesh, in the order of their arrival, until the process's own
// thread takes them.
//
// Protocol: the inbox starts the mesh. poll() and next() give one event after the other.
// is_disturbed() is true as long as one of the events that wait may change the members.
//
// A process that asks to join disturbs no member before it can be let in. The inbox answers it
// without the member's own thread: it refuses a process that trains something else, and tells the
// epoch to a process that has asked in another one. A process waits while it and this member are
// not connected in both directions, and while this member admits no process.
//
// The processes of a cohort (comm/cohort.hpp) wait until all of them have asked, and are let in
// together. A member that loses a mate is out of the run, and so is a member that hears of an epoch
// without it. Then Config::end_broken ends the process, unless the inbox is closed within
// Config::grace.
//
// Thread safety: is_disturbed() from any thread, all else from one.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "comm/elastic/last_watch.hpp"
#include "comm/elastic/mesh.hpp"
#include "comm/elastic/message.hpp"

namespace gossamer::membership {

class Inbox {
 public:
  struct Event {
    std::string from = {};
    /// Nothing: the connection with the process has begun or ended.
    std::optional<Message> message = {};
    /// Where there is no message: true if the other process is now connected in both directions,
    /// false if it is lost.
    bool has_met = false;
    /// Why it is lost.
    std::string reason = {};
    /// The members may change.
    bool disturbs = false;

    [[nodiscard]] bool is_loss() const { return !message && !has_met; }
  };
  struct Config {
    Logger logger = {};
    /// True: processes that ask to join wait until admit(true).
    bool holds = false;
    /// AskToJoin::trains of processes that may join.
    std::string trains = {};
    /// Null: a member of a cohort ends by its own thread alone.
    LastWatch::End end_broken = {};
    std::chrono::milliseconds grace{0};
  };

  Inbox(std::unique_ptr<Mesh> mesh, Config config);
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  ~Inbox();

  [[nodiscard]] Mesh& mesh() { return *mesh_; }
  /// Ends all connections, and leaves the process alone from now on.
  void close();
  [[nodiscard]] bool is_disturbed() const { return num_disturbing_.load() > 0; }
  /// The epoch of this process from now on. Watches over its members. A process that reports in an
  /// earlier one, or asks to join although it has joined, is told this epoch at once.
  void set_epoch(const Epoch& epoch);
  /// Whether processes that ask to join wait no more.
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
  /// Texts to send, each to a process.
  using Answers = std::vector<std::pair<std::string, std::string>>;

  void hear(const std::string& from, const std::string& text);
  void meet(const std::string& address);
  void lose(const std::string& address, const std::string& reason);
  /// Whether a process that asks can be let in now, with its mates. The caller holds mutex_.
  [[nodiscard]] bool is_ready(const std::string& from, const AskToJoin& ask) const;
  /// This process is out of the run, because of the cohort that it belongs to.
  void note_broken(const std::string& why);
  /// Whether an epoch is news to a process in epoch_.
  [[nodiscard]] bool is_news(const Epoch& epoch) const;
  /// Whether the members of epoch_ may change by it.
  [[nodiscard]] bool disturbs(const Event& event) const;
  /// Puts it behind the events that wait. The caller holds mutex_.
  void push(Event event);
  /// Answers processes that ask in an earlier epoch, and lets in processes that need not wait any
  /// more. The caller holds mutex_, and sends the answers without it.
  [[nodiscard]] Answers answer_waiting();
  void send(const Answers& answers);

  std::unique_ptr<Mesh> mesh_;
  Config config_;
  LastWatch watch_;
  std::atomic<int> num_disturbing_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;  // guarded by mutex_
  Epoch epoch_;               // likewise
  /// Processes that are connected in both directions.
  std::set<std::string> met_;  // likewise
  /// The requests of processes that wait to be let in.
  std::map<std::string, AskToJoin> asking_;  // likewise
};

}  // namespace gossamer::membership
