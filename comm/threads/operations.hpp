#pragma once
// The operations of the backend `threads`, which the progress worker starts and tests: one member's
// side of a meeting (group.hpp).

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/threads/group.hpp"
#include "comm/worker/progress_worker.hpp"

namespace gossamer {

/// The part of one member in a meeting.
struct ThreadPart {
  std::shared_ptr<ThreadGroup> group;
  ThreadGroup::Key key;
  MeetingKind kind = MeetingKind::kGather;
  /// The members of the meeting, as ranks of the group, and this rank's place among them.
  std::vector<int> members;
  std::size_t place = 0;
  std::size_t place_in_group = 0;
  /// The root, or the other member of a pair.
  std::size_t source = 0;
  Contribution contribution;
  /// Where gathered texts go; the caller waits, so it outlives the operation.
  std::vector<std::string>* texts = nullptr;
};

std::unique_ptr<Operation> make_thread_operation(ThreadPart part);
/// Several operations as one, over when all are.
std::unique_ptr<Operation> make_operation_set(std::vector<std::unique_ptr<Operation>> parts);

}  // namespace gossamer
