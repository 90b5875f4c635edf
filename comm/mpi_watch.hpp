#pragma once
// Finds out which rank is lost when an operation does not end. Every worker answers probes between
// its turns, even while its rank computes; a rank that is stopped or gone does not. So a rank whose
// own peer merely waits for somebody else can still name the one that everybody waits for, and then
// tells the others.
//
// Thread safety: one thread (the progress worker) uses it.

#include <cstdint>
#include <deque>
#include <vector>

#include <mpi.h>

#include "comm/progress_worker.hpp"

namespace gossamer {

class MpiWatch {
 public:
  /// `comm` carries nothing but this; it belongs to the caller and must outlive close().
  MpiWatch(MPI_Comm comm, int rank, int size);
  MpiWatch(const MpiWatch&) = delete;
  MpiWatch& operator=(const MpiWatch&) = delete;
  ~MpiWatch() = default;

  /// Answers what has come. Throws CommError when another rank has given a rank up for lost.
  void service();
  /// Asks all ranks for a sign of life, waits up to two seconds, and tells those that answer which
  /// ranks did not.
  ProgressWorker::Diagnosis diagnose(const std::vector<int>& peers);
  /// Withdraws the open receive; nothing may be called afterwards.
  void close();

 private:
  enum class Kind : std::int64_t { kProbe, kAnswer, kLost };
  struct Message {
    std::int64_t kind = 0;
    std::int64_t about = 0;
  };
  struct Sent {
    Message message;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void post_receive();
  void send(int to, Kind kind, int about);
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
};

}  // namespace gossamer
