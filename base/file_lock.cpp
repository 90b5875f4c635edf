#include "base/file_lock.hpp"

#include <cerrno>
#include <system_error>

#include <sys/file.h>

namespace gossamer {
namespace {

// Linux lets it through to programs from some file systems, and <cerrno> does not name it.
constexpr int kNotSupportedByKernel = 524;

std::string reason_of(int error) {
  return error == kNotSupportedByKernel ? "Operation not supported, error 524"
                                        : std::generic_category().message(error);
}

}  // namespace

LockFunction system_lock() {
  return [](int file, int operation) { return flock(file, operation); };
}

LockAttempt try_lock(int file, int kind, const LockFunction& lock) {
  while (lock(file, kind | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return {.result = LockAttempt::Result::kHeldByAnother};
    return {.result = LockAttempt::Result::kUnsupported, .reason = reason_of(errno)};
  }
  return {};
}

}  // namespace gossamer
