#pragma once
// The building blocks of the collective operations of the backend `tcp`.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/sorted.hpp"
#include "comm/tcp/group_messages.hpp"

namespace gossamer::tcp {

/// Every member gets the bytes of all members, in ceil(log2 n) rounds. In round r a member sends
/// the bytes that it has to the member 2^r places before it. Source: Bruck et al., "Efficient
/// algorithms for all-to-all communications in multiport message-passing systems", 1997.
class AllToAll {
 public:
  /// `sizes[i]`: bytes of the member i places after this one; `own` are this member's.
  AllToAll(GroupMessages& messages, std::uint32_t first_part, std::vector<std::int64_t> sizes,
           const std::byte* own)
      : messages_(messages), first_part_(first_part) {
    for (const std::int64_t size : sizes) offsets_.push_back(offsets_.back() + size);
    bytes_ = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(offsets_.back()));
    if (sizes.front() > 0)
      std::memcpy(bytes_->data(), own, static_cast<std::size_t>(sizes.front()));
    // All places are known, so all members can send early.
    const int n = messages.group().size();
    for (int have = 1; have < n; have *= 2) {
      const int count = std::min(have, n - have);
      Round round{.peer = (messages.group().rank - have + n) % n, .count = count};
      const int from = (messages.group().rank + have) % n;
      round.arrives.add(messages.group().world_rank(from),
                        messages.receive(from, part(rounds_.size()), block(have, count), bytes_));
      rounds_.push_back(std::move(round));
    }
    begin_round();
  }

  bool test() {
    while (num_over_ < rounds_.size() && rounds_[num_over_].arrives.are_over()) {
      ++num_over_;
      begin_round();
    }
    return num_over_ == rounds_.size() && sends_.are_over();
  }

  /// All whose bytes the present round brings, for its sender may wait for one of them.
  [[nodiscard]] std::vector<int> ranks() const {
    if (num_over_ == rounds_.size()) return sends_.ranks();
    const Group& group = messages_.group();
    std::vector<int> ranks;
    for (int i = 0; i < rounds_[num_over_].count; ++i) {
      const int place = (1 << num_over_) + i;
      ranks.push_back(group.world_rank((group.rank + place) % group.size()));
    }
    sort_unique(ranks);
    return ranks;
  }

  [[nodiscard]] Progress progress() const {
    Progress progress = sends_.progress();
    for (const Round& round : rounds_) progress += round.arrives.progress();
    return progress;
  }

  [[nodiscard]] std::span<const std::byte> of(int member) const {
    const Group& group = messages_.group();
    const auto i = static_cast<std::size_t>((member - group.rank + group.size()) % group.size());
    return std::span(*bytes_).subspan(static_cast<std::size_t>(offsets_[i]),
                                      static_cast<std::size_t>(offsets_[i + 1] - offsets_[i]));
  }

 private:
  struct Round {
    /// Gets `count` members' bytes from this one.
    int peer = 0;
    int count = 0;
    Awaiting arrives = {};
  };

  [[nodiscard]] std::uint32_t part(std::size_t round) const {
    return first_part_ + static_cast<std::uint32_t>(round);
  }
  /// The bytes of `count` members.
  [[nodiscard]] Block block(int first, int count) const {
    const std::int64_t begin = offsets_[static_cast<std::size_t>(first)];
    const std::int64_t end = offsets_[static_cast<std::size_t>(first + count)];
    return {bytes_->data() + begin, end - begin, DType::kUInt8, {}};
  }
  void begin_round() {
    if (num_over_ == rounds_.size()) return;
    const Round& round = rounds_[num_over_];
    sends_.add(messages_.group().world_rank(round.peer),
               messages_.send(round.peer, part(num_over_), block(0, round.count), bytes_));
  }

  GroupMessages& messages_;
  std::uint32_t first_part_;
  /// Where each member's bytes begin, and where the last bytes end.
  std::vector<std::int64_t> offsets_ = {0};
  std::shared_ptr<std::vector<std::byte>> bytes_;
  std::vector<Round> rounds_;
  std::size_t num_over_ = 0;
  Awaiting sends_;
};

class Collective : public Operation {
 public:
  Collective(GroupPtr group, std::uint64_t number, MessageUse use = MessageUse::kCollective)
      : messages_(std::move(group), use, number) {}
  [[nodiscard]] bool is_woken() const override { return true; }

 protected:
  [[nodiscard]] const Group& group() const { return messages_.group(); }
  [[nodiscard]] GroupMessages& messages() { return messages_; }

 private:
  GroupMessages messages_;
};

}  // namespace gossamer::tcp
