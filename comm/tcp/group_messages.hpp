#pragma once
// The common part of the operations of one group: the messages that they have posted.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/sorted.hpp"
#include "comm/tcp/operations.hpp"

namespace gossamer::tcp {

/// The messages of one operation.
class GroupMessages {
 public:
  GroupMessages(GroupPtr group, MessageUse use, std::uint64_t number)
      : group_(std::move(group)),
        key_{.group = group_->number, .use = static_cast<std::uint8_t>(use), .number = number} {}

  [[nodiscard]] const Group& group() const { return *group_; }

  /// Message `part` to, or from, a member. Parts between two members have different numbers.
  MessagePtr send(int member, std::uint32_t part, const ConstBlock& block,
                  std::shared_ptr<void> owner = {}) {
    return messages(member).post_send(key(part), block, std::move(owner));
  }
  MessagePtr receive(int member, std::uint32_t part, const Block& block,
                     std::shared_ptr<void> owner = {}) {
    return messages(member).post_receive(key(part), block, std::move(owner));
  }

 private:
  [[nodiscard]] PeerMessages& messages(int member) const {
    return group_->transport->link(group_->world_rank(member)).messages();
  }
  [[nodiscard]] MessageKey key(std::uint32_t part) const {
    MessageKey key = key_;
    key.part = part;
    return key;
  }

  GroupPtr group_;
  MessageKey key_;
};

/// Messages that are awaited together, with the world ranks at their other ends.
class Awaiting {
 public:
  void add(int world_rank, MessagePtr message) {
    progress_.total += message->bytes;
    waiting_.emplace_back(world_rank, std::move(message));
  }
  /// Whether all messages are over. Forgets the messages that are over.
  bool are_over() {
    std::erase_if(waiting_, [this](const auto& entry) {
      if (!entry.second->check()) return false;
      progress_.moved += entry.second->bytes;
      ++progress_.num_events;
      return true;
    });
    return waiting_.empty();
  }
  /// The progress of all messages that have been added.
  [[nodiscard]] Progress progress() const {
    Progress progress = progress_;
    for (const auto& [rank, message] : waiting_) progress.moved += message->num_moved;
    return progress;
  }
  [[nodiscard]] std::vector<int> ranks() const {
    std::vector<int> ranks;
    for (const auto& [rank, message] : waiting_) {
      if (!message->is_over) ranks.push_back(rank);
    }
    sort_unique(ranks);
    return ranks;
  }

 private:
  std::vector<std::pair<int, MessagePtr>> waiting_;
  /// Bytes of the messages that are over; the total counts all messages.
  Progress progress_;
};

/// The world ranks of all other members.
inline std::vector<int> others_of(const Group& group) {
  std::vector<int> others = group.world_ranks;
  others.erase(others.begin() + group.rank);
  return others;
}

}  // namespace gossamer::tcp
