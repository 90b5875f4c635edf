#include "base/fork.hpp"

#include "test/base/forked_child.hpp"

#include <array>
#include <functional>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_descriptor.hpp"
#include "base/worker_pool.hpp"

namespace gossamer {
namespace {

/// Two ends of a connection. Children get both.
std::pair<int, int> connection() {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  return {ends[0], ends[1]};
}

/// Whether somebody has ended the connection, within a long time if `waits`.
bool has_ended(int end, bool waits) {
  pollfd polled{end, POLLIN, 0};
  char byte = 0;
  return poll(&polled, 1, waits ? 60'000 : 0) == 1 && read(end, &byte, 1) == 0;
}

bool is_socket(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode);
}

TEST(ClosedInChildren, EndsAConnectionWithItsOwnerAlone) {
  const auto [near, far] = connection();
  FileDescriptor owned(near);
  const FileDescriptor peer(far);
  const ForkedChild child(ForkedChild::kLives);
  EXPECT_FALSE(has_ended(far, /*waits=*/false));
  owned = FileDescriptor();
  EXPECT_TRUE(has_ended(far, /*waits=*/true));
  EXPECT_TRUE(child.lives());
}

TEST(ClosedInChildren, LeavesTheNumberTakenInTheChild) {
  const auto [near, far] = connection();
  const FileDescriptor owned(near);
  EXPECT_EQ(ForkedChild([near = near] {
              struct stat info {};
              return !is_socket(near) && fstat(near, &info) == 0 && S_ISCHR(info.st_mode) ? 0 : 1;
            }).code(),
            0);
  EXPECT_TRUE(is_socket(near)) << "the parent keeps its own";
  close(far);
}

TEST(ClosedInChildren, EndsWithItsObject) {
  const auto [near, far] = connection();
  const auto gets_it = [near = near] {
    return ForkedChild([near] { return is_socket(near) ? 0 : 1; }).code() == 0;
  };
  EXPECT_TRUE(gets_it());
  {
    ClosedInChildren first(near);
    EXPECT_FALSE(gets_it());
    const ClosedInChildren second = std::move(first);
    EXPECT_FALSE(gets_it());
  }
  EXPECT_TRUE(gets_it());
  FileDescriptor owned(near);
  EXPECT_FALSE(gets_it());
  EXPECT_EQ(owned.release(), near);
  EXPECT_TRUE(gets_it());
  close(near);
  close(far);
}

TEST(ClosedInChildren, LeavesAGrandchildItsOwnDescriptors) {
  const auto [near, far] = connection();
  const FileDescriptor owned(near);
  EXPECT_EQ(ForkedChild([near = near] {
              // The child has closed all, and the number is another descriptor's.
              close(near);
              const auto [own, other] = connection();
              dup2(own, near);
              return ForkedChild([near] { return is_socket(near) ? 0 : 1; }).code();
            }).code(),
            0);
  close(far);
}

TEST(HomeProcess, IsNotHereInAChild) {
  const HomeProcess home;
  EXPECT_TRUE(home.is_here());
  EXPECT_EQ(ForkedChild([&] { return home.is_here() || !HomeProcess().is_here() ? 1 : 0; }).code(),
            0);
  EXPECT_TRUE(home.is_here());
}

TEST(HomeProcess, LetsAChildDestroyAWorkerPool) {
  for (const int num_threads : {1, 4}) {
    auto pool = std::make_unique<WorkerPool>(num_threads);
    pool->run([](int) {});
    EXPECT_EQ(ForkedChild([&] {
                pool.reset();
                return 0;
              }).code(),
              0);
    pool->run([](int) {});
  }
}

}  // namespace
}  // namespace gossamer
