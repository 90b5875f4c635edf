#pragma once
// The folder of a run whose writer, rank 0, may be lost: its status.json would say for ever that
// the run is under way. A rank that ends because it has lost a peer writes there how the run has
// ended.
//
// The run's lock decides who writes: the system releases it when the writer dies, and the first
// rank that gets it is the only one. Ranks try in the order of their numbers. The folder must
// belong to the run (`writer`): on a host that does not share it, another folder may have its path.
// Thread safe. Errors: none; a folder that cannot be written stays as it is.

#include <chrono>
#include <string>

#include "base/error.hpp"
#include "base/file_lock.hpp"

namespace gossamer::apps {

/// The folder as the rank that writes it has told the others.
struct LeftFolder {
  /// Empty: none.
  std::string path;
  /// The process that writes status.json, as that file names it.
  std::string writer;
  /// The run cannot go on without a rank, so the writer ends as well, perhaps later: it may be
  /// stopped (SIGSTOP, a frozen container) and keep the lock meanwhile.
  bool ends_together = false;
};

/// How a run has ended for a rank.
struct RunEnd {
  int rank = 0;
  std::string message;
  ExitCode code = ExitCode::kPeerLost;
};

/// Writes `failed` into status.json, unless the writer has written there how the run has ended.
/// Where the writer still has the lock after `patience`, the function writes only if the ranks end
/// together. Returns whether this call has written.
bool write_end_of(const LeftFolder& folder, const RunEnd& end, std::chrono::milliseconds patience,
                  const LockFunction& lock = system_lock());

}  // namespace gossamer::apps
