#pragma once
// Faults on purpose, for tests of what a run does when ranks fail: a rank ends, an operation is
// late, a message is lost, an exchange fails although all ranks are alive.
//
// Protocol: the plan is made before the ranks begin, and all ranks of a process share it
// (FaultOptions::wrap = inject_faults(plan)). Each fault names a member, and counts the operations
// of this member that fit. A member submits its operations in an order of its own, so a fault
// strikes the same operation in every run. The counts go on from epoch to epoch. Memory of share()
// is used without operations, except where a member awaits a counter; whether it does is a matter
// of time.
//
// The faults happen on the progress worker, where real ones are found.
//
// Thread safety: any thread may call anything.
// Errors: ConfigError for a plan that cannot be.

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/options.hpp"

namespace gossamer {

struct Fault {
  enum class Kind : std::uint8_t {
    /// The rank fails: its operations throw a CommError that is no PeerLost. For the others it is
    /// lost.
    kFail,
    /// The operation begins, or ends, `delay` later. Shorter than the timeout.
    kSlow,
    /// The operation never starts, so nothing of it reaches a peer. Neither this rank's operation
    /// nor those of its peers end, until one of them is over its timeout, or the epoch ends. Later
    /// operations of the same communicator may have to wait for it. For runs that go on
    /// (reconfigure()).
    kDrop,
    /// The operations of this rank end with PeerLost, although no rank is lost. The error names
    /// `peer` as the lost rank.
    kCancel
  };
  enum class Moment : std::uint8_t { kBefore, kAfter };

  Kind kind = Kind::kFail;
  /// kAfter: when the operation has ended, and before the caller knows. Not for kDrop.
  Moment moment = Moment::kBefore;
  /// The member whose operations are struck, by its id (Membership). A rank that
  /// begins a run has its rank as id.
  std::int64_t member = 0;
  /// The operations that fit: OpLabel::what, or barrier, gather, split or share. Empty: all.
  std::string what = {};
  /// OpLabel::bucket and OpLabel::round. Negative: all.
  std::int64_t bucket = -1;
  std::int64_t round = -1;
  /// The fault strikes only operations in which the member with this id takes part. Negative: all
  /// operations.
  std::int64_t peer = -1;
  /// So many operations that fit pass before the fault strikes.
  std::int64_t skip = 0;
  /// So many that follow are struck.
  std::int64_t times = 1;
  std::chrono::milliseconds delay{0};
};

class FaultInjector {
 public:
  explicit FaultInjector(std::vector<Fault> faults);

  struct Operation {
    std::int64_t member = 0;
    std::vector<std::int64_t> peers = {};
    OpLabel label = {};
  };
  /// Counts the operation. Returns the faults that strike it at this moment.
  std::vector<Fault> strike(const Operation& operation, Fault::Moment moment);
  /// How often a fault has struck so far.
  [[nodiscard]] std::int64_t num_strikes() const;

 private:
  struct Planned {
    Fault fault;
    /// Operations that fit, so far.
    std::int64_t count = 0;
  };
  mutable std::mutex mutex_;
  std::vector<Planned> plan_;     // guarded by mutex_
  std::int64_t num_strikes_ = 0;  // likewise
};

/// For FaultOptions::wrap: communicators that pass everything on to the inner ones, with the faults
/// of the plan. The communicators split from them do the same. Null: no plan, and nothing is put
/// around communicators.
WrapCommunicator inject_faults(std::shared_ptr<FaultInjector> injector);

}  // namespace gossamer
