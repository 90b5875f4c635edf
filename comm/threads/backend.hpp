#pragma once
// Backend `threads`: the ranks are threads of this process. For one machine without MPI, and for
// tests. See backends.hpp.

#include <functional>
#include <memory>

#include "comm/elastic/elastic_session.hpp"
#include "comm/options.hpp"
#include "comm/session.hpp"
#include "comm/threads/group.hpp"

namespace gossamer {

Sessions open_threads(const LaunchOptions& options);

/// The group of all ranks of a world. `survives`: the failure of a rank is a PeerLost for the
/// others.
std::shared_ptr<ThreadGroup> make_thread_world(int size, bool survives);
/// The stay of a rank in the world of this group. `is_disturbed`: in a run that survives, whether
/// its members change; else null.
std::unique_ptr<EpochSession> enter_threads(const std::shared_ptr<ThreadGroup>& group,
                                            const World& world, const LaunchOptions& options,
                                            std::function<bool()> is_disturbed);

}  // namespace gossamer
