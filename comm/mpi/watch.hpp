#pragma once
// Finds out which rank is lost when an operation does not end. Every worker answers probes between
// its turns, even while its rank computes; a rank that is stopped or gone does not answer. So a
// rank can name the lost rank even where its own peer is merely waiting for that rank, too. It then
// tells the others. A rank that fails tells the others why, and one that leaves tells them, too.
//
// Thread safety: one thread (the progress worker) uses it.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include <mpi.h>

#include "base/error.hpp"
#include "comm/worker/attendance.hpp"
#include "comm/worker/progress_worker.hpp"

namespace gossamer {

class MpiWatch {
 public:
  /// Nothing else uses `comm`, which belongs to the caller and must outlive close().
  MpiWatch(MPI_Comm comm, int rank, int size, std::shared_ptr<Attendance> attendance);
  MpiWatch(const MpiWatch&) = delete;
  MpiWatch& operator=(const MpiWatch&) = delete;
  ~MpiWatch() = default;

  /// Answers the probes that have come. Throws CommError when another rank reports a lost rank, or
  /// its own failure.
  void service();
  /// Probes all ranks, whose answers tell their steps to the attendance.
  void ask();
  /// Probes all ranks and waits up to two seconds for answers. Tells the ranks that answered about
  /// one that did not. Returns the silent ranks, or `peers` where all have answered.
  ProgressWorker::Diagnosis diagnose(const std::vector<int>& peers);
  /// Tells the other ranks that this one ends with `code`, and why. They fail with CommError.
  void tell_failure(ExitCode code, std::string_view reason);
  /// Tells the other ranks that this one leaves in the ordinary way.
  void tell_leaving();
  /// When all ranks have called tell_leaving(): waits until their messages are here and this rank's
  /// have gone, up to two seconds. MPI ends with no message under way.
  void wait_for_messages();
  /// Whether another rank has told of a failure. Any thread may ask.
  [[nodiscard]] bool has_heard_of_failure() const { return has_heard_of_failure_; }
  /// Withdraws the open receive; nothing may be called afterwards.
  void close();

 private:
  enum class Kind : std::uint8_t { kProbe, kAnswer, kLost, kFailed, kLeaving };
  struct Message {
    Kind kind = Kind::kProbe;
    /// The lost rank.
    int about = 0;
    /// kAnswer: the steps that the sender has begun; -1: unknown.
    std::int64_t num_steps = -1;
    /// The exit code of a rank that has failed.
    ExitCode code = ExitCode::kPeerLost;
    /// Why; ends with 0, so a long text lacks its end.
    std::array<char, 1000> reason = {};
  };
  struct Sent {
    Message message;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void post_receive();
  void send(int to, const Message& message);
  void send_to_all(const Message& message);
  void handle(int from, const Message& message);
  /// Forgets the messages that have left, oldest first.
  void release_sent();
  /// Waits a moment for all messages to leave.
  void flush();

  MPI_Comm comm_;
  int rank_;
  int size_;
  Message incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  std::deque<Sent> sent_;  // a deque keeps messages in place while they are on their way
  std::vector<bool> answered_;
  std::shared_ptr<Attendance> attendance_;
  std::atomic<bool> has_heard_of_failure_ = false;
};

}  // namespace gossamer
