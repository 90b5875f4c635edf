#pragma once
// Locks of whole files (flock) that are taken without waiting. Some file systems have none: NFS
// without its lock service, Lustre without `-o flock`, and some that run in user space. Thread
// safe. Errors: none; an attempt says how it has ended.

#include <cstdint>
#include <functional>
#include <string>

namespace gossamer {

/// A function that takes a lock, with the interface of flock(). Tests put another function in its
/// place.
using LockFunction = std::function<int(int file, int operation)>;

/// flock() of the system.
LockFunction system_lock();

struct LockAttempt {
  enum class Result : std::uint8_t {
    kTaken,
    /// Another process, or another descriptor of this process, has the lock.
    kHeldByAnother,
    /// The file system has no locks, or its lock service does not answer.
    kUnsupported,
  };
  Result result = Result::kTaken;
  /// Why the file system gave no lock, as `No locks available`; empty unless kUnsupported.
  std::string reason = {};
};

/// Tries to take the lock of an open file. `kind`: LOCK_EX or LOCK_SH.
LockAttempt try_lock(int file, int kind, const LockFunction& lock = system_lock());

}  // namespace gossamer
