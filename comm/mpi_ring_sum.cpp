// The sum of a large block over a group, by messages that go round a ring: every rank receives from
// the rank before it, and sends to the rank after it.
//
// The ring goes host by host (ring_order()), so only one rank of each host sends to another host.
//
// The block has n shards, one for each rank, and a shard has pieces. In n - 1 passes every shard
// collects its sum. A rank sends its own values of its own shard first. Then it adds its own values
// to each piece that arrives, and sends the piece on. In n - 1 more passes each finished shard goes
// round, and everybody keeps a copy. A shard's sum begins at its own rank and follows the ring. So
// the order of adding depends on the group, its hosts and the size alone, and all ranks have the
// same bits.
//
// What keeps the wire busy (docs/decisions/large-sums-go-round-a-ring.md has the figures):
//
// - A rank passes a piece on as soon as it arrives, while later ones are on their way. The rank's
//   own shard goes first, so the pieces to pass on queue behind it, and the queue does not run dry.
// - A link carries one stream of messages in each direction. When every rank sends to every other
//   rank at once, the streams share the links unevenly, and all ranks wait for the slowest stream.
// - A piece is so small that Open MPI sends it at once. Larger messages are announced first. On one
//   TCP connection, the announcement and the answer wait behind the data that go the same way.

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/add_block.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_operations.hpp"

namespace gossamer {
namespace {

/// Half of what Open MPI sends at once over TCP (btl_tcp_eager_limit).
constexpr std::int64_t kPieceBytes = 32 * 1024;
/// The most pieces that a rank is ready to receive at a time.
constexpr std::int64_t kReceiveWindow = 16;
/// One tag for each operation in flight, so that their pieces do not mix. Exchanges have tag 1.
constexpr int kFirstRingTag = 2;
constexpr std::int64_t kNumRingTags = 4096;

class MpiRingSum : public Operation {
 public:
  MpiRingSum(std::shared_ptr<const MpiGroup> group, ConstBlock send, Block receive,
             std::int64_t number)
      : group_(std::move(group)),
        send_(send),
        receive_(receive),
        tag_(kFirstRingTag + static_cast<int>(number % kNumRingTags)),
        size_(std::ssize(group_->world_ranks)) {
    place_ = std::ranges::find(group_->ring, group_->rank) - group_->ring.begin();
    const std::int64_t shard = (send.numel + size_ - 1) / size_;
    const std::int64_t most = kPieceBytes / size_of(send.dtype);
    // An empty shard has a piece too: the neighbour waits for one.
    shard_pieces_ = std::max<std::int64_t>(1, (shard + most - 1) / most);
    piece_numel_ = (shard + shard_pieces_ - 1) / shard_pieces_;
    num_pieces_ = 2 * (size_ - 1) * shard_pieces_;
    sends_.resize(static_cast<std::size_t>(num_pieces_), MPI_REQUEST_NULL);
    receives_.resize(sends_.size(), MPI_REQUEST_NULL);
  }

  void start() override {
    post_receives();
    for (std::int64_t piece = 0; piece < shard_pieces_; ++piece) {
      send(piece, part(send_, place_of(piece - shard_pieces_)));
    }
  }

  bool test() override {
    do {
      while (num_sent_ < num_sending() && is_over(sends_, num_sent_)) ++num_sent_;
      post_receives();
    } while (take_next());
    return num_received_ == num_pieces_ && num_sent_ == num_pieces_;
  }

  /// Only the last shard is still to be sent. The next operation's pieces fill the wire when this
  /// one's become few. While all ranks keep pace, they do not go in front of them.
  [[nodiscard]] bool lets_next_start() const override {
    return num_sent_ + shard_pieces_ >= num_pieces_;
  }

  /// Names the rank that sends a missing piece as the first one, before others pass it on. In the
  /// first passes this is the nearest rank before this one that has not begun. If no piece is
  /// missing, the rank after this one has not taken all of them.
  [[nodiscard]] std::vector<int> waiting_for() const override {
    if (num_posted_ == 0) return other_members(*group_);
    if (num_received_ < num_pieces_) {
      const std::int64_t pass = num_received_ / shard_pieces_;
      return {world_rank(-1 - pass % (size_ - 1))};
    }
    if (num_sent_ < num_pieces_) return {world_rank(1)};
    return {};
  }

 private:
  /// Where a piece lies in the block; the last pieces of a block may be empty.
  struct Place {
    std::int64_t first = 0;
    std::int64_t numel = 0;
  };

  /// The place of the i-th piece that this rank receives. The pieces before the first one, from
  /// -shard_pieces_ on, are those of its own shard. The i-th piece is the one to send as number
  /// i + shard_pieces_.
  [[nodiscard]] Place place_of(std::int64_t i) const {
    const std::int64_t pass = (i + shard_pieces_) / shard_pieces_ - 1;
    const std::int64_t shard = place_after(-1 - pass);
    const std::int64_t piece = shard * shard_pieces_ + (i + shard_pieces_) % shard_pieces_;
    const std::int64_t first = std::min(piece * piece_numel_, send_.numel);
    return {first, std::min(piece_numel_, send_.numel - first)};
  }

  template <class AnyBlock>
  [[nodiscard]] static AnyBlock part(const AnyBlock& block, const Place& place) {
    return part_of(block, place.first, place.numel);
  }

  /// The place on the ring that is so many places after this rank's.
  [[nodiscard]] std::int64_t place_after(std::int64_t distance) const {
    return (place_ + distance + 2 * size_) % size_;
  }
  /// The member at that place.
  [[nodiscard]] int member(std::int64_t distance) const {
    return group_->ring[static_cast<std::size_t>(place_after(distance))];
  }
  [[nodiscard]] int world_rank(std::int64_t distance) const {
    return group_->world_ranks[static_cast<std::size_t>(member(distance))];
  }

  [[nodiscard]] std::int64_t num_sending() const {
    return std::min(num_received_ + shard_pieces_, num_pieces_);
  }

  void send(std::int64_t i, const ConstBlock& piece) {
    mpi_check(MPI_Isend(piece.data, static_cast<int>(piece.numel), mpi_type(piece.dtype), member(1),
                        tag_, group_->comm, &sends_[static_cast<std::size_t>(i)]),
              "MPI_Isend");
  }

  /// A finished piece lands where its sum was under way n passes before. So that sum must have
  /// left.
  void post_receives() {
    const std::int64_t end = std::min(
        {num_pieces_, num_received_ + kReceiveWindow, num_sent_ + (size_ - 1) * shard_pieces_});
    for (; num_posted_ < end; ++num_posted_) {
      const Block piece = part(receive_, place_of(num_posted_));
      mpi_check(
          MPI_Irecv(piece.data, static_cast<int>(piece.numel), mpi_type(piece.dtype), member(-1),
                    tag_, group_->comm, &receives_[static_cast<std::size_t>(num_posted_)]),
          "MPI_Irecv");
    }
  }

  /// Adds to the next piece, if it has arrived, and passes it on. Returns whether it has arrived.
  bool take_next() {
    if (num_received_ == num_posted_) return false;
    MPI_Status status;
    if (!is_over(receives_, num_received_, &status)) return false;
    const std::int64_t i = num_received_++;
    const Place place = place_of(i);
    require_size(status, place.numel);
    if (i < (size_ - 1) * shard_pieces_) add_block(part(receive_, place), part(send_, place));
    if (i + shard_pieces_ < num_pieces_) send(i + shard_pieces_, part(receive_, place));
    return true;
  }

  static bool is_over(std::vector<MPI_Request>& requests, std::int64_t i,
                      MPI_Status* status = MPI_STATUS_IGNORE) {
    int done = 0;
    mpi_check(MPI_Test(&requests[static_cast<std::size_t>(i)], &done, status), "MPI_Test");
    return done != 0;
  }

  /// MPI takes a message that is shorter than the receive.
  void require_size(const MPI_Status& status, std::int64_t numel) const {
    int found = 0;
    mpi_check(MPI_Get_count(&status, mpi_type(send_.dtype), &found), "MPI_Get_count");
    if (found == numel) return;
    throw CommError({.label = {.what = "all-reduce"}},
                    concat("rank ", world_rank(-1), " sums a block of another size"));
  }

  std::shared_ptr<const MpiGroup> group_;
  ConstBlock send_;
  Block receive_;
  int tag_;
  std::int64_t size_;
  /// Of this rank on the ring.
  std::int64_t place_ = 0;
  std::int64_t shard_pieces_ = 0;
  std::int64_t piece_numel_ = 0;
  /// The number of pieces that this rank sends, and receives.
  std::int64_t num_pieces_ = 0;
  /// One request for each piece, in the order in which the pieces go over the wire.
  std::vector<MPI_Request> sends_;
  std::vector<MPI_Request> receives_;
  std::int64_t num_posted_ = 0;
  std::int64_t num_received_ = 0;
  std::int64_t num_sent_ = 0;
};

}  // namespace

std::unique_ptr<Operation> make_mpi_ring_sum(std::shared_ptr<const MpiGroup> group, ConstBlock send,
                                             Block receive, std::int64_t number) {
  return std::make_unique<MpiRingSum>(std::move(group), send, receive, number);
}

}  // namespace gossamer
