// The ring of MPI: messages with a tag for each operation.

#include "comm/collectives/ring_sum.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/mpi/check.hpp"
#include "comm/mpi/operations.hpp"

namespace gossamer {
namespace {

/// Half of what Open MPI sends at once over TCP (btl_tcp_eager_limit). Larger messages are
/// announced first. On one TCP connection, the announcement and the answer wait behind the data
/// that go the same way.
constexpr std::int64_t kPieceBytes = 32 * 1024;
constexpr std::int64_t kReceiveWindow = 16;
/// One tag for each operation in flight, so that their pieces do not mix. Exchanges have tag 1.
constexpr int kFirstRingTag = 2;
constexpr std::int64_t kNumRingTags = 4096;

class MpiRingWire : public RingWire {
 public:
  MpiRingWire(std::shared_ptr<const MpiGroup> group, DType dtype, std::int64_t number)
      : group_(std::move(group)),
        type_(mpi_type(dtype)),
        tag_(kFirstRingTag + static_cast<int>(number % kNumRingTags)),
        place_(std::ranges::find(group_->ring, group_->rank) - group_->ring.begin()) {}

  void send(std::int64_t i, const ConstBlock& piece) override {
    mpi_check(MPI_Isend(piece.data, static_cast<int>(piece.numel), type_, member(1), tag_,
                        group_->comm, new_request(sends_, i)),
              "MPI_Isend");
  }

  void receive(std::int64_t i, const Block& piece) override {
    mpi_check(MPI_Irecv(piece.data, static_cast<int>(piece.numel), type_, member(-1), tag_,
                        group_->comm, new_request(receives_, i)),
              "MPI_Irecv");
    numels_.push_back(piece.numel);
  }

  bool has_sent(std::int64_t i) override { return is_over(sends_, i, MPI_STATUS_IGNORE); }

  bool has_received(std::int64_t i) override {
    MPI_Status status;
    if (!is_over(receives_, i, &status)) return false;
    // MPI takes a message that is shorter than the receive.
    int found = 0;
    mpi_check(MPI_Get_count(&status, type_, &found), "MPI_Get_count");
    if (found == numels_[static_cast<std::size_t>(i)]) return true;
    const int before = group_->world_ranks[static_cast<std::size_t>(member(-1))];
    throw CommError({.label = {.what = "all-reduce"}},
                    concat("rank ", before, " sums a block of another size"));
  }

 private:
  /// The member so many places after this one on the ring.
  [[nodiscard]] int member(std::int64_t distance) const {
    const std::int64_t size = std::ssize(group_->ring);
    return group_->ring[static_cast<std::size_t>((place_ + distance + size) % size)];
  }

  static MPI_Request* new_request(std::vector<MPI_Request>& requests, std::int64_t i) {
    requests.resize(static_cast<std::size_t>(i) + 1, MPI_REQUEST_NULL);
    return &requests.back();
  }

  static bool is_over(std::vector<MPI_Request>& requests, std::int64_t i, MPI_Status* status) {
    int done = 0;
    mpi_check(MPI_Test(&requests[static_cast<std::size_t>(i)], &done, status), "MPI_Test");
    return done != 0;
  }

  std::shared_ptr<const MpiGroup> group_;
  MPI_Datatype type_;
  int tag_;
  /// The place of this rank on the ring.
  std::int64_t place_;
  /// By number. MPI keeps no pointer to a request.
  std::vector<MPI_Request> sends_;
  std::vector<MPI_Request> receives_;
  std::vector<std::int64_t> numels_;
};

}  // namespace

std::unique_ptr<Operation> make_mpi_ring_sum(std::shared_ptr<const MpiGroup> group, ConstBlock send,
                                             Block receive, std::int64_t number) {
  Ring ring = ring_through(group->ring, group->world_ranks, group->rank);
  ring.piece_bytes = kPieceBytes;
  ring.receive_window = kReceiveWindow;
  auto wire = std::make_unique<MpiRingWire>(std::move(group), send.dtype, number);
  return make_ring_sum(std::move(ring), send, receive, std::move(wire));
}

}  // namespace gossamer
