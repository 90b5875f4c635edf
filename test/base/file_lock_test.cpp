#include "base/file_lock.hpp"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include "base/file_descriptor.hpp"

namespace gossamer {
namespace {

using Result = LockAttempt::Result;

FileDescriptor open_for_test(const std::string& name) {
  return FileDescriptor(
      open((testing::TempDir() + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
}

/// flock() of a file system that always fails with this error.
LockFunction failing_with(int error) {
  return [error](int, int) {
    errno = error;
    return -1;
  };
}

TEST(FileLock, IsTakenOnce) {
  const FileDescriptor first = open_for_test("file_lock_is_taken_once");
  const FileDescriptor second = open_for_test("file_lock_is_taken_once");
  EXPECT_EQ(try_lock(first.get(), LOCK_EX).result, Result::kTaken);
  EXPECT_EQ(try_lock(second.get(), LOCK_EX).result, Result::kHeldByAnother);
}

TEST(FileLock, IsSharedByReaders) {
  const FileDescriptor first = open_for_test("file_lock_is_shared");
  const FileDescriptor second = open_for_test("file_lock_is_shared");
  EXPECT_EQ(try_lock(first.get(), LOCK_SH).result, Result::kTaken);
  EXPECT_EQ(try_lock(second.get(), LOCK_SH).result, Result::kTaken);
}

TEST(FileLock, SaysWhyAFileSystemHasNone) {
  const auto reason = [](int error) { return try_lock(0, LOCK_EX, failing_with(error)).reason; };
  EXPECT_EQ(reason(ENOLCK), "No locks available");
  EXPECT_EQ(reason(ENOSYS), "Function not implemented");
  EXPECT_EQ(reason(EOPNOTSUPP), "Operation not supported");
  EXPECT_EQ(reason(524), "Operation not supported, error 524");
}

TEST(FileLock, IsTriedAgainAfterASignal) {
  int calls = 0;
  const auto interrupted_once = [&calls](int, int) {
    errno = EINTR;
    return ++calls == 1 ? -1 : 0;
  };
  EXPECT_EQ(try_lock(0, LOCK_EX, interrupted_once).result, Result::kTaken);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace gossamer
