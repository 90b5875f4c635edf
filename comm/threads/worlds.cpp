#include "comm/threads/worlds.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "base/text.hpp"
#include "comm/elastic/elastic_session.hpp"
#include "comm/elastic/local_mesh.hpp"
#include "comm/rendezvous/memory_store.hpp"
#include "comm/threads/backend.hpp"
#include "comm/threads/group.hpp"

namespace gossamer {
namespace {

using membership::Epoch;
using membership::Participant;

/// Where the members of an epoch find their group. All ranks share it.
class EpochGroups {
 public:
  /// The first member to ask makes the group. One that asks when others are in a later epoch gets a
  /// group to which no member comes: the members have changed again.
  std::shared_ptr<ThreadGroup> group(std::int64_t epoch, int size) {
    const std::lock_guard lock(mutex_);
    if (epoch == epoch_) return group_;
    auto fresh = make_thread_world(size, /*survives=*/true);
    if (epoch < epoch_) return fresh;
    epoch_ = epoch;
    group_ = fresh;
    return fresh;
  }

 private:
  std::mutex mutex_;
  std::int64_t epoch_ = -1;             // guarded by mutex_
  std::shared_ptr<ThreadGroup> group_;  // likewise
};

class ThreadWorlds : public EpochWorlds {
 public:
  ThreadWorlds(std::shared_ptr<EpochGroups> groups, const LaunchOptions& options)
      : groups_(std::move(groups)), options_(options) {}

  std::unique_ptr<EpochSession> enter(Participant& self) override {
    const Epoch& epoch = self.epoch();
    const auto size = static_cast<int>(epoch.members.size());
    const int node_size = renewed_node_size(options_, size);
    return enter_threads(groups_->group(epoch.number, size),
                         world_of(self.rank(), size, node_size > 0 ? node_size : size), options_,
                         [&self] { return self.is_disturbed(); });
  }

 private:
  std::shared_ptr<EpochGroups> groups_;
  LaunchOptions options_;
};

}  // namespace

Sessions open_elastic_threads(const LaunchOptions& options) {
  const auto network = std::make_shared<membership::LocalNetwork>();
  const auto store = std::make_shared<MemoryStore>();
  const auto groups = std::make_shared<EpochGroups>();
  Epoch first;
  for (int rank = 0; rank < std::max(1, options.num_ranks); ++rank) {
    first.members.push_back({.id = first.next_id++, .address = concat("rank ", rank)});
  }
  first.num_voters = first.next_id;
  Sessions sessions;
  for (const membership::Member& member : first.members) {
    membership::EpochRecord record(store, "threads", /*secret=*/"");
    record.begin(first);
    auto participant = std::make_unique<Participant>(
        membership::make_local_mesh(network, member.address), std::move(record), member.id, first,
        participant_config(options));
    sessions.push_back(open_elastic(options, std::move(participant),
                                    std::make_unique<ThreadWorlds>(groups, options)));
  }
  return sessions;
}

}  // namespace gossamer
