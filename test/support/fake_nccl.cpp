#include "test/support/fake_nccl.hpp"

#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

void copy(const Block& to, const ConstBlock& from) {
  if (to.bytes() != from.bytes()) throw std::logic_error("FakeNccl: sizes differ");
  if (to.numel > 0) std::memcpy(to.data, from.data, static_cast<std::size_t>(to.bytes()));
}

template <class T>
void add(const Block& to, const ConstBlock& from) {
  const auto target = to.as<T>();
  const auto source = from.as<T>();
  for (std::size_t i = 0; i < target.size(); ++i) target[i] += source[i];
}

void add(const Block& to, const ConstBlock& from) {
  if (to.dtype == DType::kFloat32) return add<float>(to, from);
  if (to.dtype == DType::kFloat64) return add<double>(to, from);
  if (to.dtype == DType::kInt64) return add<std::int64_t>(to, from);
  throw std::logic_error("FakeNccl: no sum of this type");
}

}  // namespace

std::string FakeNccl::unique_id() {
  const std::lock_guard lock(hub_.mutex);
  return concat("id", hub_.num_ids++);
}

FakeNccl::Member& FakeNccl::open_member(Comm comm) {
  Member& mine = member(comm);
  if (mine.finalized) throw std::logic_error("FakeNccl: an operation after finalize()");
  return mine;
}

NcclApi::Comm FakeNccl::add(Member made) {
  ++hub_.num_made;
  return members_.emplace_back(std::make_shared<Member>(std::move(made))).get();
}

NcclApi::Comm FakeNccl::init(const std::string& id, int rank, int size) {
  const std::lock_guard lock(hub_.mutex);
  return add({.id = id, .rank = rank, .size = size});
}

void FakeNccl::split(Comm comm, int color, int key, Comm* part) {
  Member& parent = member(comm);
  parent.split = concat(parent.id, "/", parent.num_splits++);
  parent.part = part;
  parent.in_progress = 2;
  const std::lock_guard lock(hub_.mutex);
  hub_.splits[parent.split][parent.rank] = {color, key};
}

bool FakeNccl::end_split(Member& parent) {
  if (parent.split.empty()) return true;
  const std::lock_guard lock(hub_.mutex);
  const auto& colors = hub_.splits.at(parent.split);
  if (static_cast<int>(colors.size()) < parent.size) return false;
  const std::string call = std::exchange(parent.split, "");
  const auto [color, key] = colors.at(parent.rank);
  if (color < 0) return true;
  Member part{.id = concat(call, ":", color)};
  for (const auto& [rank, wish] : colors) {
    if (wish.first != color) continue;
    if (wish.second < key) ++part.rank;
    ++part.size;
  }
  *parent.part = add(std::move(part));
  return true;
}

void FakeNccl::set_error(std::string error) {
  const std::lock_guard lock(error_mutex_);
  next_error_ = std::move(error);
}

bool FakeNccl::progress(Comm comm) {
  {
    const std::lock_guard lock(error_mutex_);
    if (!next_error_.empty()) throw CommError({}, std::exchange(next_error_, ""));
  }
  Member& mine = member(comm);
  if (mine.aborted || mine.destroyed) {
    throw std::logic_error("FakeNccl: a communicator is used after its end");
  }
  if (mine.in_progress-- > 0) return false;
  return end_split(mine);
}

void FakeNccl::send(Comm comm, const ConstBlock& block, int peer, Stream& stream) {
  if (!in_group_) throw std::logic_error("FakeNccl: a send outside of a group");
  Member& mine = open_member(comm);
  const FakeNcclHub::MessageKey key{mine.id, mine.rank, peer, mine.num_sent[peer]++};
  group_stream_ = &stream;
  posts_.push_back([this, key, block] {
    const std::lock_guard lock(hub_.mutex);
    hub_.messages[key] = {.block = block};
    hub_.changed.notify_all();
  });
  waits_.push_back([this, key, &mine] {
    std::unique_lock lock(hub_.mutex);
    hub_.changed.wait(lock, [&] { return mine.aborted || hub_.messages.at(key).taken; });
    hub_.messages.erase(key);
  });
}

void FakeNccl::receive(Comm comm, const Block& block, int peer, Stream& stream) {
  if (!in_group_) throw std::logic_error("FakeNccl: a receive outside of a group");
  Member& mine = open_member(comm);
  const FakeNcclHub::MessageKey key{mine.id, peer, mine.rank, mine.num_received[peer]++};
  group_stream_ = &stream;
  waits_.insert(waits_.begin(), [this, key, block, &mine] {
    std::unique_lock lock(hub_.mutex);
    hub_.changed.wait(lock, [&] { return mine.aborted || hub_.messages.contains(key); });
    if (mine.aborted) return;
    FakeNcclHub::Message& message = hub_.messages.at(key);
    copy(block, message.block);
    message.taken = true;
    hub_.changed.notify_all();
  });
}

void FakeNccl::group_end() {
  in_group_ = false;
  if (group_stream_ == nullptr) return;
  std::exchange(group_stream_, nullptr)
      ->run([posts = std::exchange(posts_, {}), waits = std::exchange(waits_, {})] {
        for (const auto& post : posts) post();
        for (const auto& wait : waits) wait();
      });
}

void FakeNccl::collective(Comm comm, const ConstBlock& send, Stream& stream,
                          std::function<void(const std::map<int, ConstBlock>&)> finish) {
  Member& mine = open_member(comm);
  const std::pair key{mine.id, mine.num_collectives++};
  stream.run([this, key, send, &mine, finish = std::move(finish)] {
    std::unique_lock lock(hub_.mutex);
    FakeNcclHub::Meeting& meeting = hub_.meetings[key];
    meeting.sent[mine.rank] = send;
    hub_.changed.notify_all();
    hub_.changed.wait(
        lock, [&] { return mine.aborted || static_cast<int>(meeting.sent.size()) == mine.size; });
    if (!mine.aborted) {
      finish(meeting.sent);
      ++meeting.num_done;
      hub_.changed.notify_all();
      // Nobody may write its block again before all have read it.
      hub_.changed.wait(lock, [&] { return mine.aborted || meeting.num_done == mine.size; });
    }
    // Who has not read the block yet never will: the memory may go now.
    if (mine.aborted) meeting.sent.erase(mine.rank);
  });
}

void FakeNccl::all_reduce_sum(Comm comm, const ConstBlock& send, const Block& receive,
                              Stream& stream) {
  collective(comm, send, stream, [receive](const std::map<int, ConstBlock>& sent) {
    std::memset(receive.data, 0, static_cast<std::size_t>(receive.bytes()));
    for (const auto& [rank, block] : sent) gossamer::add(receive, block);
  });
}

void FakeNccl::broadcast(Comm comm, const Block& block, int root, Stream& stream) {
  const bool is_root = member(comm).rank == root;
  collective(comm, block, stream, [block, root, is_root](const std::map<int, ConstBlock>& sent) {
    if (!is_root) copy(block, sent.at(root));
  });
}

void FakeNccl::finalize(Comm comm) {
  Member& mine = open_member(comm);
  mine.finalized = true;
  const std::lock_guard lock(hub_.mutex);
  ++hub_.num_finalized;
  mine.in_progress = hub_.finalize_hangs ? std::numeric_limits<int>::max() : 2;
}

void FakeNccl::destroy(Comm comm) {
  Member& mine = member(comm);
  if (!mine.finalized || mine.in_progress >= 0 || mine.destroyed || mine.aborted) {
    throw std::logic_error("FakeNccl: destroy() of what has not come to its end");
  }
  mine.destroyed = true;
  const std::lock_guard lock(hub_.mutex);
  ++hub_.num_destroyed;
}

void FakeNccl::abort(std::span<const Comm> comms) noexcept {
  const std::lock_guard lock(hub_.mutex);
  for (const Comm comm : comms) member(comm).aborted = true;
  hub_.num_aborted += static_cast<int>(comms.size());
  hub_.changed.notify_all();
}

}  // namespace gossamer
