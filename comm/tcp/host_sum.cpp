// The sum of a large block over ranks of one host, in rank order, so it has the bits of ranks that
// are threads. Every member adds one shard: it gets the others' values of that shard, and gives the
// sum to all. Between hosts a ring is better, where a link carries one stream in each direction.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "comm/collectives/add_block.hpp"
#include "comm/tcp/group_messages.hpp"
#include "comm/tcp/operations.hpp"

namespace gossamer::tcp {
namespace {

class HostSum : public Operation {
 public:
  HostSum(GroupPtr group, std::uint64_t number, ConstBlock send, Block receive)
      : messages_(std::move(group), MessageUse::kHostSum, number),
        send_(send),
        receive_(receive),
        most_((send.numel + size() - 1) / size()) {}

  void start() override {
    has_started_ = true;
    const ConstBlock mine = shard(send_, rank());
    terms_ = std::make_shared_for_overwrite<std::byte[]>(
        static_cast<std::size_t>(mine.bytes() * size()));
    for_each_other([&](int member) {
      terms_left_.add(world_rank(member),
                      messages_.receive(member, kTerms, term_of(member), terms_));
      sums_left_.add(world_rank(member), messages_.receive(member, kSums, shard(receive_, member)));
    });
    for_each_other([&](int member) {
      sends_.add(world_rank(member), messages_.send(member, kTerms, shard(send_, member)));
    });
  }

  bool test() override {
    if (!has_added_) {
      if (!terms_left_.are_over()) return false;
      add();
      for_each_other([&](int member) {
        sends_.add(world_rank(member), messages_.send(member, kSums, shard(receive_, rank())));
      });
      has_added_ = true;
    }
    return sums_left_.are_over() && sends_.are_over();
  }

  [[nodiscard]] bool is_woken() const override { return true; }
  [[nodiscard]] Progress progress() const override {
    Progress progress = terms_left_.progress();
    progress += sums_left_.progress();
    progress += sends_.progress();
    return progress;
  }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    if (!has_started_) return others_of(messages_.group());
    for (const Awaiting* each : {&terms_left_, &sums_left_}) {
      if (!each->ranks().empty()) return each->ranks();
    }
    return sends_.ranks();
  }

 private:
  enum Part : std::uint32_t { kTerms, kSums };

  [[nodiscard]] int size() const { return messages_.group().size(); }
  [[nodiscard]] int rank() const { return messages_.group().rank; }
  [[nodiscard]] int world_rank(int member) const { return messages_.group().world_rank(member); }

  /// Begins behind this rank, so that not all ask the same member first.
  template <class Fn>
  void for_each_other(const Fn& fn) {
    for (int distance = 1; distance < size(); ++distance) fn((rank() + distance) % size());
  }

  /// The last shards may be short, or empty.
  template <class AnyBlock>
  [[nodiscard]] AnyBlock shard(const AnyBlock& block, int member) const {
    const std::int64_t first = std::min(member * most_, block.numel);
    return part_of(block, first, std::min(most_, block.numel - first));
  }
  [[nodiscard]] Block term_of(int member) const {
    const ConstBlock mine = shard(send_, rank());
    return {terms_.get() + member * mine.bytes(), mine.numel, mine.dtype, {}};
  }

  void add() {
    const ConstBlock mine = shard(send_, rank());
    sum_in_order(shard(receive_, rank()), size(), [&](int member) -> ConstBlock {
      return member == rank() ? mine : ConstBlock(term_of(member));
    });
  }

  GroupMessages messages_;
  ConstBlock send_;
  Block receive_;
  /// Elements of a shard.
  std::int64_t most_;
  /// What the members have sent of this rank's shard, one after the other.
  std::shared_ptr<std::byte[]> terms_;
  bool has_started_ = false;
  bool has_added_ = false;
  Awaiting terms_left_;
  Awaiting sums_left_;
  Awaiting sends_;
};

}  // namespace

std::unique_ptr<Operation> make_host_sum(GroupPtr group, std::uint64_t number, ConstBlock send,
                                         Block receive) {
  return std::make_unique<HostSum>(std::move(group), number, send, receive);
}

}  // namespace gossamer::tcp
