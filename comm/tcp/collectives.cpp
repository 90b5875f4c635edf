// The operations in which all members of a group take part, except for large sums.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "comm/collectives/add_block.hpp"
#include "comm/tcp/all_to_all.hpp"
#include "comm/tcp/group_messages.hpp"
#include "comm/tcp/operations.hpp"

namespace gossamer::tcp {
namespace {

using Bytes = std::vector<std::byte>;

/// Two steps: all lengths, then all texts.
class Gather : public Collective {
 public:
  Gather(GroupPtr group, std::uint64_t number, std::string text,
         std::shared_ptr<std::vector<std::string>> texts)
      : Collective(std::move(group), number), text_(std::move(text)), texts_(std::move(texts)) {}

  void start() override {
    length_ = static_cast<std::int64_t>(text_.size());
    lengths_.emplace(messages(), 0U,
                     std::vector<std::int64_t>(group().world_ranks.size(), sizeof length_),
                     reinterpret_cast<const std::byte*>(&length_));
  }

  bool test() override {
    if (!all_) {
      if (!lengths_->test()) return false;
      start_texts();
    }
    if (!all_->test()) return false;
    for (int member = 0; member < group().size(); ++member) {
      const auto bytes = all_->of(member);
      texts_->emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return true;
  }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    if (all_) return all_->ranks();
    return lengths_ ? lengths_->ranks() : others_of(group());
  }
  [[nodiscard]] Progress progress() const override {
    Progress progress = lengths_ ? lengths_->progress() : Progress();
    if (all_) progress += all_->progress();
    return progress;
  }

 private:
  void start_texts() {
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < group().size(); ++i) {
      std::int64_t size = 0;
      std::memcpy(&size, lengths_->of((group().rank + i) % group().size()).data(), sizeof size);
      sizes.push_back(size);
    }
    all_.emplace(messages(), kTextParts, std::move(sizes),
                 reinterpret_cast<const std::byte*>(text_.data()));
  }

  /// Behind the rounds of the lengths.
  static constexpr std::uint32_t kTextParts = 64;

  std::string text_;
  std::int64_t length_ = 0;
  std::shared_ptr<std::vector<std::string>> texts_;
  std::optional<AllToAll> lengths_;
  std::optional<AllToAll> all_;
};

class SmallSum : public Collective {
 public:
  SmallSum(GroupPtr group, std::uint64_t number, ConstBlock send, Block receive)
      : Collective(std::move(group), number, MessageUse::kSmallSum),
        send_(send),
        receive_(receive) {}

  void start() override {
    all_.emplace(messages(), 0U,
                 std::vector<std::int64_t>(group().world_ranks.size(), send_.bytes()),
                 static_cast<const std::byte*>(send_.data));
  }

  bool test() override {
    if (!all_->test()) return false;
    sum_in_order(receive_, group().size(), [this](int member) {
      return ConstBlock(all_->of(member).data(), send_.numel, send_.dtype);
    });
    return true;
  }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    return all_ ? all_->ranks() : others_of(group());
  }
  [[nodiscard]] Progress progress() const override { return all_ ? all_->progress() : Progress(); }

 private:
  ConstBlock send_;
  Block receive_;
  std::optional<AllToAll> all_;
};

/// Blocks that are received from many, or passed on, go in pieces of so many bytes.
constexpr std::int64_t kPieceBytes = std::int64_t{256} << 10;

/// A block in pieces; an empty block has one, so that its members wait for one another.
class Pieces {
 public:
  explicit Pieces(const Block& block) : block_(block), most_(kPieceBytes / size_of(block.dtype)) {}
  [[nodiscard]] std::int64_t count() const {
    return std::max<std::int64_t>(1, (block_.numel + most_ - 1) / most_);
  }
  [[nodiscard]] Block at(std::int64_t i) const {
    return part_of(block_, i * most_, std::min(most_, block_.numel - i * most_));
  }

 private:
  Block block_;
  std::int64_t most_;
};

class Reduce : public Collective {
 public:
  Reduce(GroupPtr group, std::uint64_t number, Block block, int root)
      : Collective(std::move(group), number), pieces_(block), root_(root) {}

  void start() override {
    has_started_ = true;
    if (group().rank == root_) return receive_piece();
    for (std::int64_t i = 0; i < pieces_.count(); ++i) {
      waiting_.add(group().world_rank(root_),
                   messages().send(root_, static_cast<std::uint32_t>(i), pieces_.at(i)));
    }
  }

  bool test() override {
    if (!waiting_.are_over()) return false;
    if (group().rank != root_) return true;
    while (waiting_.are_over()) {
      add_piece();
      if (++num_over_ == pieces_.count()) return true;
      receive_piece();
    }
    return false;
  }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    if (has_started_) return waiting_.ranks();
    return group().rank == root_ ? others_of(group()) : std::vector{group().world_rank(root_)};
  }
  [[nodiscard]] Progress progress() const override { return waiting_.progress(); }

 private:
  /// A piece of every other member, one after the other in one block of memory.
  void receive_piece() {
    const Block piece = pieces_.at(num_over_);
    if (!terms_) {
      terms_ = std::make_shared<Bytes>(static_cast<std::size_t>(piece.bytes()) *
                                       group().world_ranks.size());
    }
    for (int member = 0; member < group().size(); ++member) {
      if (member == root_) continue;
      waiting_.add(group().world_rank(member),
                   messages().receive(member, static_cast<std::uint32_t>(num_over_),
                                      term_of(member, piece), terms_));
    }
  }
  [[nodiscard]] Block term_of(int member, const Block& piece) const {
    return {terms_->data() + member * piece.bytes(), piece.numel, piece.dtype, {}};
  }
  void add_piece() {
    const Block piece = pieces_.at(num_over_);
    // The sum takes the place of the root's own values.
    copy_block(piece, term_of(root_, piece));
    sum_in_order(piece, group().size(),
                 [&](int member) -> ConstBlock { return term_of(member, piece); });
  }

  Pieces pieces_;
  int root_;
  bool has_started_ = false;
  std::int64_t num_over_ = 0;
  std::shared_ptr<Bytes> terms_;
  Awaiting waiting_;
};

/// Member p, counted from the root, gets the pieces from member (p - 1) / 2, and passes them on to
/// 2 p + 1 and 2 p + 2.
class Broadcast : public Collective {
 public:
  Broadcast(GroupPtr group, std::uint64_t number, Block block, int root)
      : Collective(std::move(group), number), pieces_(block), root_(root) {}

  void start() override {
    has_started_ = true;
    if (place() > 0) {
      for (std::int64_t i = 0; i < pieces_.count(); ++i) {
        arriving_.push_back(
            messages().receive(parent(), static_cast<std::uint32_t>(i), pieces_.at(i)));
        arrived_.total += pieces_.at(i).bytes();
      }
    }
    pass_on();
  }

  bool test() override {
    pass_on();
    return num_passed_on_ == pieces_.count() && sends_.are_over();
  }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    if (num_passed_on_ == pieces_.count()) return sends_.ranks();
    if (has_started_ || place() > 0) return {group().world_rank(parent())};
    return others_of(group());
  }
  [[nodiscard]] Progress progress() const override {
    Progress progress = sends_.progress();
    progress += arrived_;
    // The piece that arrives now.
    const auto next = static_cast<std::size_t>(num_passed_on_);
    if (next < arriving_.size()) progress.moved += arriving_[next]->num_moved;
    return progress;
  }

 private:
  [[nodiscard]] int place() const {
    return (group().rank - root_ + group().size()) % group().size();
  }
  [[nodiscard]] int member_at(int place) const { return (place + root_) % group().size(); }
  [[nodiscard]] int parent() const { return member_at((place() - 1) / 2); }

  void pass_on() {
    while (num_passed_on_ < pieces_.count()) {
      const auto i = static_cast<std::size_t>(num_passed_on_);
      if (place() > 0) {
        if (!arriving_[i]->check()) return;
        arrived_.moved += arriving_[i]->bytes;
      }
      for (const int child : {2 * place() + 1, 2 * place() + 2}) {
        if (child >= group().size()) continue;
        const int member = member_at(child);
        sends_.add(
            group().world_rank(member),
            messages().send(member, static_cast<std::uint32_t>(i), pieces_.at(num_passed_on_)));
      }
      ++num_passed_on_;
    }
  }

  Pieces pieces_;
  int root_;
  bool has_started_ = false;
  std::vector<MessagePtr> arriving_;
  /// The pieces that have come; the total is that of all.
  Progress arrived_;
  std::int64_t num_passed_on_ = 0;
  Awaiting sends_;
};

}  // namespace

std::unique_ptr<Operation> make_gather(GroupPtr group, std::uint64_t number, std::string text,
                                       std::shared_ptr<std::vector<std::string>> texts) {
  return std::make_unique<Gather>(std::move(group), number, std::move(text), std::move(texts));
}

std::unique_ptr<Operation> make_small_sum(GroupPtr group, std::uint64_t number, ConstBlock send,
                                          Block receive) {
  return std::make_unique<SmallSum>(std::move(group), number, send, receive);
}

std::unique_ptr<Operation> make_reduce(GroupPtr group, std::uint64_t number, Block block,
                                       int root) {
  return std::make_unique<Reduce>(std::move(group), number, block, root);
}

std::unique_ptr<Operation> make_broadcast(GroupPtr group, std::uint64_t number, Block block,
                                          int root) {
  return std::make_unique<Broadcast>(std::move(group), number, block, root);
}

}  // namespace gossamer::tcp
