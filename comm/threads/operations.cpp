#include "comm/threads/operations.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <thread>
#include <utility>

#include "base/sorted.hpp"
#include "comm/collectives/add_block.hpp"

namespace gossamer {
namespace {

void sum_in_rank_order(const std::vector<Contribution>& members, const Block& receive) {
  const auto term = [&](int member) { return members[static_cast<std::size_t>(member)].send; };
  sum_in_order(receive, static_cast<int>(members.size()), term);
}

/// The same for a sum that takes the place of one of its terms.
void reduce_in_rank_order(const std::vector<Contribution>& members, const Block& sum) {
  constexpr std::int64_t kBytes = 16 * 1024;
  alignas(64) std::array<std::byte, kBytes> memory;
  const std::int64_t most = kBytes / size_of(sum.dtype);
  for (std::int64_t first = 0; first < sum.numel; first += most) {
    const std::int64_t numel = std::min(most, sum.numel - first);
    const Block part{memory.data(), numel, sum.dtype, {}};
    sum_in_order(part, static_cast<int>(members.size()), [&](int member) {
      return part_of(members[static_cast<std::size_t>(member)].send, first, numel);
    });
    copy_block(part, part_of(sum, first, numel));
  }
}

/// Counts a reader, also where reading throws: the others wait for it before they go.
class Reading {
 public:
  explicit Reading(Meeting& meeting) : meeting_(meeting) { meeting_.num_readers.fetch_add(1); }
  ~Reading() { meeting_.num_readers.fetch_sub(1); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  Meeting& meeting_;
};

/// One member's side of a meeting.
class ThreadOperation : public Operation {
 public:
  explicit ThreadOperation(ThreadPart config)
      : config_(std::move(config)), receive_(config_.contribution.receive) {}

  ~ThreadOperation() override {
    if (!meeting_ || meeting_->over()) return;
    // Dropped before its end: the run has failed. A peer may be reading this rank's blocks at this
    // moment; none can start to any more.
    config_.group->hub().fail(config_.group->world_ranks()[config_.place_in_group]);
    while (meeting_->num_readers.load() > 0) std::this_thread::yield();
  }

  void start() override {
    meeting_ = config_.group->join(config_.key, config_.kind, config_.place, config_.members.size(),
                                   std::move(config_.contribution));
    if (meeting_->complete()) tell_members();
  }

  bool test() override {
    if (!worked_ && meeting_->complete()) {
      bool usable = false;
      {
        const Reading reading(*meeting_);
        usable = !config_.group->hub().failed();
        if (usable) work();
      }
      worked_ = usable;
      if (usable && meeting_->num_done.fetch_add(1) + 1 == meeting_->members.size()) tell_members();
    }
    if (worked_ && meeting_->over()) return true;
    config_.group->hub().check();
    return false;
  }

  [[nodiscard]] bool is_woken() const override { return true; }
  [[nodiscard]] bool is_tagged() const override { return config_.kind == MeetingKind::kTagged; }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    std::vector<int> late;
    if (meeting_ && meeting_->complete()) return late;
    std::vector<bool> here(config_.members.size(), false);
    here[config_.place] = true;
    // A member that comes while this is read is listed or not; both are true at some moment.
    if (meeting_) here = config_.group->who_is_here(*meeting_);
    for (std::size_t place = 0; place < here.size(); ++place) {
      if (!here[place]) late.push_back(world_rank(config_.members[place]));
    }
    return late;
  }

  /// A block is copied in one piece, so the others' coming and going tells the rest.
  [[nodiscard]] Progress progress() const override {
    const std::int64_t bytes = receive_.bytes();
    if (!meeting_) return {.total = bytes};
    return {.moved = worked_ ? bytes : 0,
            .total = bytes,
            .num_events =
                static_cast<std::int64_t>(meeting_->num_here.load() + meeting_->num_done.load())};
  }

 private:
  /// All have come, or all have done their parts.
  void tell_members() const {
    for (const int member : config_.members) {
      config_.group->hub().bell(world_rank(member))->tell();
    }
  }

  [[nodiscard]] int world_rank(int member) const {
    return config_.group->world_ranks()[static_cast<std::size_t>(member)];
  }

  void work() {
    const std::vector<Contribution>& members = meeting_->members;
    switch (config_.kind) {
      case MeetingKind::kMessage:
      case MeetingKind::kTagged:
        if (config_.place == config_.source) return;
        return copy_block(members[config_.source].send, receive_);
      case MeetingKind::kExchange:
      case MeetingKind::kBroadcast:
        return copy_block(members[config_.source].send, receive_);
      case MeetingKind::kAllReduce:
        return sum_in_rank_order(members, receive_);
      case MeetingKind::kReduce:
        if (config_.place == config_.source) reduce_in_rank_order(members, receive_);
        return;
      case MeetingKind::kGather:
        for (const Contribution& member : members) config_.texts->push_back(member.text);
        return;
    }
  }

  ThreadPart config_;
  Block receive_;
  std::shared_ptr<Meeting> meeting_;
  bool worked_ = false;
};

/// Several messages as one operation, over when all are.
class OperationSet : public Operation {
 public:
  explicit OperationSet(std::vector<std::unique_ptr<Operation>> parts) : parts_(std::move(parts)) {}

  void start() override {
    for (const auto& part : parts_) part->start();
  }
  bool test() override {
    std::erase_if(parts_, [this](const auto& part) {
      if (!part->test()) return false;
      over_ += part->progress();
      return true;
    });
    return parts_.empty();
  }
  [[nodiscard]] Progress progress() const override {
    Progress progress = over_;
    for (const auto& part : parts_) progress += part->progress();
    return progress;
  }
  [[nodiscard]] bool is_woken() const override { return true; }
  [[nodiscard]] std::vector<int> waiting_for() const override {
    std::vector<int> late;
    for (const auto& part : parts_)
      std::ranges::copy(part->waiting_for(), std::back_inserter(late));
    sort_unique(late);
    return late;
  }

 private:
  std::vector<std::unique_ptr<Operation>> parts_;
  /// The progress of the parts that are over.
  Progress over_;
};

}  // namespace

std::unique_ptr<Operation> make_thread_operation(ThreadPart part) {
  return std::make_unique<ThreadOperation>(std::move(part));
}

std::unique_ptr<Operation> make_operation_set(std::vector<std::unique_ptr<Operation>> parts) {
  return std::make_unique<OperationSet>(std::move(parts));
}

}  // namespace gossamer
