#include "comm/collectives/ring_sum.hpp"

#include <algorithm>
#include <utility>

#include "comm/collectives/add_block.hpp"

namespace gossamer {
namespace {

class RingSum : public Operation {
 public:
  RingSum(Ring ring, ConstBlock send, Block receive, std::unique_ptr<RingWire> wire)
      : ring_(std::move(ring)),
        send_(send),
        receive_(receive),
        wire_(std::move(wire)),
        size_(std::ssize(ring_.members)) {
    const std::int64_t shard = (send.numel + size_ - 1) / size_;
    const std::int64_t most = ring_.piece_bytes / size_of(send.dtype);
    // An empty shard has a piece too: the neighbour waits for one.
    shard_pieces_ = std::max<std::int64_t>(1, (shard + most - 1) / most);
    piece_numel_ = (shard + shard_pieces_ - 1) / shard_pieces_;
    num_pieces_ = 2 * (size_ - 1) * shard_pieces_;
  }

  void start() override {
    post_receives();
    for (std::int64_t piece = 0; piece < shard_pieces_; ++piece) {
      wire_->send(piece, part(send_, place_of(piece - shard_pieces_)));
    }
  }

  bool test() override {
    do {
      while (num_sent_ < num_sending() && wire_->has_sent(num_sent_)) ++num_sent_;
      post_receives();
    } while (take_next());
    return num_received_ == num_pieces_ && num_sent_ == num_pieces_;
  }

  [[nodiscard]] bool is_woken() const override { return wire_->is_woken(); }

  /// Only the last shard is still to be sent. The next operation's pieces fill the wire when this
  /// one's become few. While all ranks keep pace, they do not go in front of them.
  [[nodiscard]] bool lets_next_start() const override {
    return num_sent_ + shard_pieces_ >= num_pieces_;
  }

  /// Names the rank that sends a missing piece as the first one, before others pass it on. In the
  /// first passes this is the nearest rank before this one that has not begun. If no piece is
  /// missing, the rank after this one has not taken all of them.
  [[nodiscard]] std::vector<int> waiting_for() const override {
    if (num_posted_ == 0) {
      std::vector<int> others = ring_.members;
      others.erase(others.begin() + ring_.place);
      return others;
    }
    if (num_received_ < num_pieces_) {
      const std::int64_t pass = num_received_ / shard_pieces_;
      return {world_rank(-1 - pass % (size_ - 1))};
    }
    if (num_sent_ < num_pieces_) return {world_rank(1)};
    return {};
  }

  [[nodiscard]] std::vector<int> linked_with() const override {
    return {world_rank(-1), world_rank(1)};
  }

  /// The progress in whole pieces.
  [[nodiscard]] Progress progress() const override {
    const std::int64_t piece_bytes = piece_numel_ * size_of(send_.dtype);
    return {.moved = (num_sent_ + num_received_) * piece_bytes,
            .total = 2 * num_pieces_ * piece_bytes};
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
    return (ring_.place + distance + 2 * size_) % size_;
  }
  [[nodiscard]] int world_rank(std::int64_t distance) const {
    return ring_.members[static_cast<std::size_t>(place_after(distance))];
  }

  [[nodiscard]] std::int64_t num_sending() const {
    return std::min(num_received_ + shard_pieces_, num_pieces_);
  }

  /// A finished piece lands where its sum was under way n passes before. So that sum must have
  /// left.
  void post_receives() {
    const std::int64_t end = std::min({num_pieces_, num_received_ + ring_.receive_window,
                                       num_sent_ + (size_ - 1) * shard_pieces_});
    for (; num_posted_ < end; ++num_posted_) {
      wire_->receive(num_posted_, part(receive_, place_of(num_posted_)));
    }
  }

  /// Adds to the next piece, if it has arrived, and passes it on. Returns whether it has arrived.
  bool take_next() {
    if (num_received_ == num_posted_) return false;
    if (!wire_->has_received(num_received_)) return false;
    const std::int64_t i = num_received_++;
    const Block piece = part(receive_, place_of(i));
    if (i < (size_ - 1) * shard_pieces_) add_block(piece, part(send_, place_of(i)));
    if (i + shard_pieces_ < num_pieces_) wire_->send(i + shard_pieces_, piece);
    return true;
  }

  Ring ring_;
  ConstBlock send_;
  Block receive_;
  std::unique_ptr<RingWire> wire_;
  std::int64_t size_;
  std::int64_t shard_pieces_ = 0;
  std::int64_t piece_numel_ = 0;
  /// The number of pieces that this rank sends, and receives.
  std::int64_t num_pieces_ = 0;
  std::int64_t num_posted_ = 0;
  std::int64_t num_received_ = 0;
  std::int64_t num_sent_ = 0;
};

}  // namespace

Ring ring_through(std::span<const int> order, std::span<const int> world_ranks, int rank) {
  Ring ring;
  for (const int member : order) {
    if (member == rank) ring.place = std::ssize(ring.members);
    ring.members.push_back(world_ranks[static_cast<std::size_t>(member)]);
  }
  return ring;
}

std::unique_ptr<Operation> make_ring_sum(Ring ring, ConstBlock send, Block receive,
                                         std::unique_ptr<RingWire> wire) {
  return std::make_unique<RingSum>(std::move(ring), send, receive, std::move(wire));
}

}  // namespace gossamer
