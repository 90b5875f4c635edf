// The sum of a block of middle size over ranks of several hosts. A ring would need a way between
// neighbours for every rank, one after the other; a gather would give every rank the blocks of all.
//
// Every member adds one shard. In ceil(log2 n) rounds the members send one another halves of what
// is left, and add what arrives. These are the rounds of AllToAll backwards, over the same
// connections. Then AllToAll gives the finished shards to all. A member sends and receives
// 2 (n-1) / n times the block, and keeps three times the block. The order of adding depends on the
// number of members alone, and each shard is added once, so all ranks have the same bits.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/collectives/add_block.hpp"
#include "comm/tcp/all_to_all.hpp"
#include "comm/tcp/operations.hpp"

namespace gossamer::tcp {
namespace {

class ShardSum : public Collective {
 public:
  ShardSum(GroupPtr group, std::uint64_t number, ConstBlock send, Block receive)
      : Collective(std::move(group), number, MessageUse::kSmallSum),
        send_(send),
        receive_(receive),
        numel_((send.numel + size() - 1) / size()) {}

  void start() override {
    partial_ = make_slots(size());
    for (int slot = 0; slot < size(); ++slot) {
      const ConstBlock own = shard(send_, (rank() + slot) % size());
      if (own.numel > 0) copy_block(own, part_of(slots(partial_, slot, 1), 0, own.numel));
    }
    for (int have = 1; have < size(); have *= 2) {
      rounds_.push_back({.have = have, .count = std::min(have, size() - have)});
    }
    std::ranges::reverse(rounds_);
    for (std::size_t i = 0; i < rounds_.size(); ++i) {
      Round& round = rounds_[i];
      round.inbox = make_slots(round.count);
      const int from = (rank() - round.have + size()) % size();
      round.arrives.add(group().world_rank(from),
                        messages().receive(from, static_cast<std::uint32_t>(i),
                                           slots(round.inbox, 0, round.count), round.inbox));
    }
    begin_round();
  }

  bool test() override {
    while (num_over_ < rounds_.size()) {
      Round& round = rounds_[num_over_];
      if (!round.arrives.are_over()) return false;
      add_block(slots(partial_, 0, round.count), slots(round.inbox, 0, round.count));
      ++num_over_;
      begin_round();
    }
    if (!all_) {
      const Block own = slots(partial_, 0, 1);
      all_.emplace(messages(), kFinishedParts,
                   std::vector<std::int64_t>(group().world_ranks.size(), own.bytes()),
                   static_cast<const std::byte*>(own.data));
    }
    if (!all_->test() || !sends_.are_over()) return false;
    for (int member = 0; member < size(); ++member) {
      const Block place = shard(receive_, member);
      if (place.numel > 0) copy_block({all_->of(member).data(), place.numel, place.dtype}, place);
    }
    return true;
  }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    if (!partial_) return others_of(group());
    if (num_over_ < rounds_.size()) return rounds_[num_over_].arrives.ranks();
    std::vector<int> ranks = sends_.ranks();
    if (all_) std::ranges::copy(all_->ranks(), std::back_inserter(ranks));
    sort_unique(ranks);
    return ranks;
  }

  [[nodiscard]] Progress progress() const override {
    Progress progress = sends_.progress();
    for (const Round& round : rounds_) progress += round.arrives.progress();
    if (all_) progress += all_->progress();
    return progress;
  }

 private:
  using Memory = std::shared_ptr<std::byte[]>;
  /// This member sends `count` slots from slot `have` on, and adds as many to its first ones. Slot
  /// i is for the member i places after this one.
  struct Round {
    int have = 0;
    int count = 0;
    Memory inbox = {};
    Awaiting arrives = {};
  };
  /// Behind the rounds in which members add.
  static constexpr std::uint32_t kFinishedParts = 64;

  [[nodiscard]] int size() const { return group().size(); }
  [[nodiscard]] int rank() const { return group().rank; }

  /// Zeros: the last shards may be short, or empty.
  [[nodiscard]] Memory make_slots(int count) const {
    return std::make_shared<std::byte[]>(
        static_cast<std::size_t>(count * numel_ * size_of(send_.dtype)));
  }
  [[nodiscard]] Block slots(const Memory& memory, int first, int count) const {
    return {memory.get() + first * numel_ * size_of(send_.dtype), count * numel_, send_.dtype, {}};
  }
  template <class AnyBlock>
  [[nodiscard]] AnyBlock shard(const AnyBlock& block, int member) const {
    const std::int64_t first = std::min(member * numel_, block.numel);
    return part_of(block, first, std::min(numel_, block.numel - first));
  }

  void begin_round() {
    if (num_over_ == rounds_.size()) return;
    const Round& round = rounds_[num_over_];
    const int to = (rank() + round.have) % size();
    sends_.add(group().world_rank(to),
               messages().send(to, static_cast<std::uint32_t>(num_over_),
                               slots(partial_, round.have, round.count), partial_));
  }

  ConstBlock send_;
  Block receive_;
  /// Elements of a shard.
  std::int64_t numel_;
  /// What this member has of each shard's sum.
  Memory partial_;
  /// The largest first.
  std::vector<Round> rounds_;
  std::size_t num_over_ = 0;
  Awaiting sends_;
  std::optional<AllToAll> all_;
};

}  // namespace

std::unique_ptr<Operation> make_shard_sum(GroupPtr group, std::uint64_t number, ConstBlock send,
                                          Block receive) {
  return std::make_unique<ShardSum>(std::move(group), number, send, receive);
}

}  // namespace gossamer::tcp
