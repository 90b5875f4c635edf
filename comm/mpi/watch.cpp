#include "comm/mpi/watch.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/text.hpp"
#include "comm/mpi/check.hpp"

namespace gossamer {
namespace {

constexpr int kTag = 1;
constexpr auto kPatience = std::chrono::seconds(2);
// For the last messages to leave; those to the silent rank never do.
constexpr auto kFlush = std::chrono::milliseconds(100);

}  // namespace

MpiWatch::MpiWatch(MPI_Comm comm, int rank, int size, std::shared_ptr<Attendance> attendance)
    : comm_(comm),
      rank_(rank),
      size_(size),
      answered_(static_cast<std::size_t>(size)),
      attendance_(std::move(attendance)) {
  post_receive();
}

void MpiWatch::post_receive() {
  mpi_check(
      MPI_Irecv(&incoming_, sizeof(incoming_), MPI_BYTE, MPI_ANY_SOURCE, kTag, comm_, &receive_),
      "MPI_Irecv");
}

void MpiWatch::send(int to, const Message& message) {
  Sent& sent = sent_.emplace_back(Sent{message});
  mpi_check(
      MPI_Isend(&sent.message, sizeof(sent.message), MPI_BYTE, to, kTag, comm_, &sent.request),
      "MPI_Isend");
}

void MpiWatch::send_to_all(const Message& message) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) send(rank, message);
  }
}

void MpiWatch::release_sent() {
  while (!sent_.empty()) {
    int gone = 0;
    mpi_check(MPI_Test(&sent_.front().request, &gone, MPI_STATUS_IGNORE), "MPI_Test");
    if (gone == 0) break;
    sent_.pop_front();
  }
}

void MpiWatch::flush() {
  const auto end = std::chrono::steady_clock::now() + kFlush;
  release_sent();
  while (!sent_.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    release_sent();
  }
}

void MpiWatch::service() {
  while (true) {
    int here = 0;
    MPI_Status status;
    mpi_check(MPI_Test(&receive_, &here, &status), "MPI_Test");
    if (here == 0) break;
    const Message message = incoming_;
    post_receive();
    handle(status.MPI_SOURCE, message);
  }
  release_sent();
}

void MpiWatch::handle(int from, const Message& message) {
  switch (message.kind) {
    case Kind::kProbe:
      return send(from, {.kind = Kind::kAnswer, .num_steps = attendance_->num_steps(rank_)});
    case Kind::kAnswer:
      answered_[static_cast<std::size_t>(from)] = true;
      if (message.num_steps >= 0) attendance_->tell_steps(from, message.num_steps);
      return;
    case Kind::kLost:
      throw CommError(
          {.rank = rank_, .peers = {message.about}, .label = {.what = "communication"}},
          concat("that rank shows no sign of life; rank ", from, " has found this out"));
    case Kind::kLeaving:
      return attendance_->leave(from);
    case Kind::kFailed:
      has_heard_of_failure_ = true;
      throw CommError({.rank = rank_,
                       .peers = {from},
                       .label = {.what = "communication"},
                       .code = message.code},
                      concat("that rank has failed: ", message.reason.data()));
  }
}

ProgressWorker::Diagnosis MpiWatch::diagnose(const std::vector<int>& peers) {
  answered_.assign(answered_.size(), false);
  send_to_all({.kind = Kind::kProbe});
  std::vector<int> silent;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    service();
    silent.clear();
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && !answered_[static_cast<std::size_t>(rank)]) silent.push_back(rank);
    }
  } while (!silent.empty() && std::chrono::steady_clock::now() < end);
  if (silent.empty()) {
    const std::string known = attendance_->behind(peers);
    return {peers, known.empty() ? std::string(ProgressWorker::kAllAlive) : known,
            /*are_alive=*/true};
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && answered_[static_cast<std::size_t>(rank)]) {
      send(rank, {.kind = Kind::kLost, .about = silent.front()});
    }
  }
  flush();
  return {silent, "no sign of life (stopped, or its host is gone)"};
}

void MpiWatch::tell_failure(ExitCode code, std::string_view reason) {
  Message message{.kind = Kind::kFailed, .code = code};
  reason.copy(message.reason.data(), message.reason.size() - 1);
  send_to_all(message);
  flush();
}

void MpiWatch::tell_leaving() { send_to_all({.kind = Kind::kLeaving}); }

void MpiWatch::ask() {
  for (int rank = 0; rank < size_; ++rank) {
    // What was known is of an earlier wait.
    if (rank != rank_) attendance_->tell_steps(rank, -1);
  }
  send_to_all({.kind = Kind::kProbe});
}

void MpiWatch::wait_for_messages() {
  std::vector<int> others;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) others.push_back(rank);
  }
  const auto end = std::chrono::steady_clock::now() + kPatience;
  service();
  while ((!sent_.empty() || !(others.empty() || attendance_->all_have_left(others))) &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    service();
  }
}

void MpiWatch::close() {
  if (receive_ == MPI_REQUEST_NULL) return;
  MPI_Cancel(&receive_);
  MPI_Wait(&receive_, MPI_STATUS_IGNORE);
}

}  // namespace gossamer
