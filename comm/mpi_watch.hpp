#pragma once
// Finds out which rank is lost when an operation does not end. Every worker answers probes between
// its turns, even while its rank computes; a rank that is stopped or gone does not answer. So a
// rank can name the lost rank even where its own peer is merely waiting for that rank, too. It then
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
  /// Nothing else uses `comm`, which belongs to the caller and must outlive close().
  MpiWatch(MPI_Comm comm, int rank, int size);
  MpiWatch(const MpiWatch&) = delete;
  MpiWatch& operator=(const MpiWatch&) = delete;
  ~MpiWatch() = default;

  /// Answers the probes that have come. Throws CommError when another rank reports a lost rank.
  void service();
  /// Probes all ranks and waits up to two seconds for answers. Tells the ranks that answered about
  /// one that did not. Returns the silent ranks, or `peers` where all have answered.
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
