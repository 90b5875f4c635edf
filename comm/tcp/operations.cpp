#include "comm/tcp/operations.hpp"

#include <utility>

#include "comm/collectives/ring_sum.hpp"
#include "comm/tcp/group_messages.hpp"

namespace gossamer::tcp {
namespace {

class Messages : public Operation {
 public:
  Messages(GroupPtr group, std::vector<Post> sends, std::vector<Post> receives, bool is_tagged)
      : group_(std::move(group)),
        sends_(std::move(sends)),
        receives_(std::move(receives)),
        is_tagged_(is_tagged) {}

  void start() override {
    has_started_ = true;
    // Receives first: their senders wait for that.
    for (const Post& post : receives_) {
      awaiting_.add(rank_of(post), messages(post).post_receive(post.key, post.receive));
    }
    for (const Post& post : sends_) {
      awaiting_.add(rank_of(post), messages(post).post_send(post.key, post.send));
    }
  }

  bool test() override { return awaiting_.are_over(); }
  [[nodiscard]] bool is_tagged() const override { return is_tagged_; }
  [[nodiscard]] bool is_woken() const override { return true; }
  [[nodiscard]] Progress progress() const override { return awaiting_.progress(); }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    if (has_started_) return awaiting_.ranks();
    std::vector<int> ranks;
    for (const auto* posts : {&sends_, &receives_}) {
      for (const Post& post : *posts) ranks.push_back(rank_of(post));
    }
    sort_unique(ranks);
    return ranks;
  }

 private:
  [[nodiscard]] int rank_of(const Post& post) const { return group_->world_rank(post.member); }
  [[nodiscard]] PeerMessages& messages(const Post& post) const {
    return group_->transport->link(rank_of(post)).messages();
  }

  GroupPtr group_;
  std::vector<Post> sends_;
  std::vector<Post> receives_;
  bool is_tagged_;
  bool has_started_ = false;
  Awaiting awaiting_;
};

/// Connections hold as much as a window allows, so it covers a far link: 16 MiB.
constexpr std::int64_t kRingPieceBytes = std::int64_t{64} << 10;
constexpr std::int64_t kRingWindow = 256;

class TcpRingWire : public RingWire {
 public:
  TcpRingWire(const GroupPtr& group, std::uint64_t number)
      : messages_(group, MessageUse::kRing, number) {
    const std::vector<int>& ring = group->ring;
    const std::int64_t size = std::ssize(ring);
    const std::int64_t place = std::ranges::find(ring, group->rank) - ring.begin();
    next_ = ring[static_cast<std::size_t>((place + 1) % size)];
    last_ = ring[static_cast<std::size_t>((place + size - 1) % size)];
  }

  void send(std::int64_t i, const ConstBlock& piece) override {
    sends_.push_back(messages_.send(next_, static_cast<std::uint32_t>(i), piece));
  }
  void receive(std::int64_t i, const Block& piece) override {
    receives_.push_back(messages_.receive(last_, static_cast<std::uint32_t>(i), piece));
  }
  bool has_sent(std::int64_t i) override { return sends_[static_cast<std::size_t>(i)]->check(); }
  bool has_received(std::int64_t i) override {
    return receives_[static_cast<std::size_t>(i)]->check();
  }
  [[nodiscard]] bool is_woken() const override { return true; }

 private:
  GroupMessages messages_;
  int next_ = 0;
  int last_ = 0;
  std::vector<MessagePtr> sends_;
  std::vector<MessagePtr> receives_;
};

}  // namespace

std::unique_ptr<Operation> make_messages(GroupPtr group, std::vector<Post> sends,
                                         std::vector<Post> receives, bool is_tagged) {
  return std::make_unique<Messages>(std::move(group), std::move(sends), std::move(receives),
                                    is_tagged);
}

std::unique_ptr<Operation> make_ring_sum(GroupPtr group, std::uint64_t number, ConstBlock send,
                                         Block receive) {
  Ring ring = ring_through(group->ring, group->world_ranks, group->rank);
  ring.piece_bytes = kRingPieceBytes;
  ring.receive_window = kRingWindow;
  return gossamer::make_ring_sum(std::move(ring), send, receive,
                                 std::make_unique<TcpRingWire>(group, number));
}

}  // namespace gossamer::tcp
