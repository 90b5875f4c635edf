#include "comm/threads/group.hpp"

#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

std::string_view name_of(MeetingKind kind) {
  switch (kind) {
    case MeetingKind::kExchange:
      return "exchange";
    case MeetingKind::kMessage:
      return "message";
    case MeetingKind::kTagged:
      return "tagged message";
    case MeetingKind::kAllReduce:
      return "all-reduce";
    case MeetingKind::kReduce:
      return "reduction";
    case MeetingKind::kBroadcast:
      return "broadcast";
    case MeetingKind::kGather:
      return "gather";
  }
  return "operation";
}

std::string describe(MeetingKind kind, const ConstBlock& block) {
  return concat(name_of(kind), " of ", block.numel, " ", name_of(block.dtype), " elements");
}

}  // namespace

ThreadHub::ThreadHub(std::size_t num_ranks, bool survives)
    : survives_(survives), attendance_(std::make_shared<Attendance>(num_ranks)) {
  for (std::size_t r = 0; r < num_ranks; ++r) bells_.push_back(std::make_shared<Doorbell>());
}

bool ThreadHub::fail(int rank, ExitCode code, std::string_view reason) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    // A rank may drop its operations before it says why.
    is_first = !failed() || (failed_rank() == rank && reason_.empty());
    if (is_first) {
      code_ = code;
      reason_ = reason;
      failed_rank_.store(rank);
    }
  }
  tell_all();
  return is_first;
}

void ThreadHub::leave(int rank) {
  attendance_->leave(rank);
  tell_all();
}

void ThreadHub::tell_all() const {
  for (const auto& bell : bells_) bell->tell();
}

void ThreadHub::check(int rank) const {
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  const CommError::Context context{.rank = rank, .peers = {failed_rank()}, .code = code_};
  const std::string text = concat("that rank has failed", reason_.empty() ? "" : ": ", reason_);
  if (survives_) throw PeerLost(context, text);
  throw CommError(context, text);
}

std::shared_ptr<Meeting> ThreadGroup::join(const Key& key, MeetingKind kind, std::size_t place,
                                           std::size_t size, Contribution contribution) {
  const std::lock_guard lock(mutex_);
  auto& meeting = open_[key];
  if (!meeting) {
    meeting = std::make_shared<Meeting>(size);
    meeting->kind = kind;
  }
  for (const Contribution& other : meeting->members) {
    if (!other.here) continue;
    if (meeting->kind == kind && other.send.numel == contribution.send.numel &&
        other.send.dtype == contribution.send.dtype) {
      break;
    }
    throw CommError({.label = {.what = name_of(kind)}},
                    concat("this rank starts ", describe(kind, contribution.send), ", a peer ",
                           describe(meeting->kind, other.send)));
  }
  contribution.here = true;
  meeting->members.at(place) = std::move(contribution);
  std::shared_ptr<Meeting> joined = meeting;
  if (joined->num_here.fetch_add(1) + 1 == size) open_.erase(key);
  return joined;
}

std::vector<bool> ThreadGroup::who_is_here(const Meeting& meeting) {
  const std::lock_guard lock(mutex_);
  std::vector<bool> here;
  for (const Contribution& member : meeting.members) here.push_back(member.here);
  return here;
}

void ThreadGroup::lay_out(std::int64_t number, std::size_t place, Buffer part) {
  const std::lock_guard lock(mutex_);
  Sharing& sharing = sharings_[number];
  sharing.parts.resize(world_ranks_.size());
  sharing.num_left = world_ranks_.size();
  sharing.parts.at(place) = std::move(part);
}

std::vector<Buffer> ThreadGroup::pick_up(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = sharings_.find(number);
  std::vector<Buffer> parts = found->second.parts;
  if (--found->second.num_left == 0) sharings_.erase(found);
  return parts;
}

std::shared_ptr<ThreadGroup> ThreadGroup::subgroup(std::int64_t number, int color,
                                                   std::vector<int> world_ranks) {
  const std::lock_guard lock(mutex_);
  auto& [group, num_left] = subgroups_[{number, color}];
  if (!group) {
    num_left = world_ranks.size();
    group = std::make_shared<ThreadGroup>(hub_, std::move(world_ranks));
  }
  std::shared_ptr<ThreadGroup> found = group;
  if (--num_left == 0) subgroups_.erase({number, color});
  return found;
}

}  // namespace gossamer
