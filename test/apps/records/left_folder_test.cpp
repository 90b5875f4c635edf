#include "apps/records/left_folder.hpp"

#include "test/apps/folder.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "apps/records/folder_lock.hpp"
#include "apps/records/run_folder.hpp"

namespace gossamer::apps {
namespace {

using namespace std::chrono_literals;

const RunEnd kEnd{.rank = 1, .message = "rank 0 is lost", .code = ExitCode::kPeerLost};

/// The folder of a run that is under way, or has ended.
LeftFolder folder_of(const Folder& folder, const std::string& state) {
  LeftFolder run{.path = folder.file("."), .writer = "process 7 on here"};
  write_status_file(run.path, {{"state", state}, {"step", 40}, {"writer", run.writer}});
  return run;
}

TEST(LeftFolder, SaysHowTheRunHasEnded) {
  const Folder folder;
  const LeftFolder run = folder_of(folder, "running");
  EXPECT_TRUE(write_end_of(run, kEnd, 0ms));
  EXPECT_EQ(read_status(run.path), Json({{"state", "failed"},
                                         {"step", 40},
                                         {"writer", run.writer},
                                         {"message", "rank 0 is lost"},
                                         {"exit_code", 74}}));
}

TEST(LeftFolder, StaysAsItIsWhileItsWriterLives) {
  const Folder folder;
  const LeftFolder run = folder_of(folder, "running");
  const FolderLock writer(run.path);
  EXPECT_FALSE(write_end_of(run, kEnd, 0ms));
  EXPECT_EQ(read_status(run.path)["state"], "running");
}

TEST(LeftFolder, IsWrittenWhereAStoppedWriterKeepsTheLock) {
  const Folder folder;
  LeftFolder run = folder_of(folder, "running");
  run.ends_together = true;
  const FolderLock writer(run.path);
  EXPECT_TRUE(write_end_of(run, kEnd, 0ms));
  EXPECT_EQ(read_status(run.path)["state"], "failed");
}

TEST(LeftFolder, IsWrittenWhenTheWriterGoesAMomentLater) {
  const Folder folder;
  const LeftFolder run = folder_of(folder, "running");
  auto writer = std::make_optional<FolderLock>(run.path);
  std::jthread rank([&] { EXPECT_TRUE(write_end_of(run, kEnd, 60s)); });
  writer.reset();
  rank.join();
  EXPECT_EQ(read_status(run.path)["state"], "failed");
}

TEST(LeftFolder, KeepsWhatItsWriterHasSaid) {
  for (const std::string state : {"done", "failed", "stopped"}) {
    const Folder folder;
    const LeftFolder run = folder_of(folder, state);
    EXPECT_FALSE(write_end_of(run, kEnd, 60s)) << state;
    EXPECT_EQ(read_status(run.path)["state"], state);
  }
}

TEST(LeftFolder, OfAnotherRunStaysAsItIs) {
  const Folder folder;
  LeftFolder run = folder_of(folder, "running");
  run.writer = "process 8 on here";
  EXPECT_FALSE(write_end_of(run, kEnd, 60s));
  EXPECT_EQ(read_status(run.path)["state"], "running");
}

TEST(LeftFolder, ThatThisHostLacksIsNone) {
  const Folder folder;
  EXPECT_FALSE(write_end_of({.path = folder.file("none"), .writer = "process 7"}, kEnd, 60s));
  EXPECT_FALSE(write_end_of({}, kEnd, 60s));
}

TEST(LeftFolder, IsWrittenByOneRank) {
  const Folder folder;
  const LeftFolder run = folder_of(folder, "running");
  std::atomic<int> count = 0;
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.emplace_back([&] { count += write_end_of(run, kEnd, 60s) ? 1 : 0; });
    }
  }
  EXPECT_EQ(count, 1);
}

TEST(LeftFolder, IsWrittenWhereTheFileSystemHasNoLocks) {
  const Folder folder;
  const LeftFolder run = folder_of(folder, "running");
  const auto none = [](int, int) {
    errno = ENOLCK;
    return -1;
  };
  EXPECT_TRUE(write_end_of(run, kEnd, 0ms, none));
}

TEST(FolderLock, SaysWhyAFileSystemHasNone) {
  const Folder folder;
  const FolderLock lock(folder.file("."), [](int, int) {
    errno = EOPNOTSUPP;
    return -1;
  });
  EXPECT_FALSE(lock.held());
  EXPECT_EQ(lock.holder(), "");
  EXPECT_EQ(lock.why_none(), "Operation not supported");
}

}  // namespace
}  // namespace gossamer::apps
