#include "base/file_limit.hpp"

#include "test/base/thrown.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace gossamer {
namespace {

/// Puts the limit back.
class FileLimit : public testing::Test {
 protected:
  FileLimit() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~FileLimit() override { setrlimit(RLIMIT_NOFILE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

  rlimit before_ = {};
};

TEST_F(FileLimit, IsRaisedToWhatTheSystemAllows) {
  const rlimit low{.rlim_cur = 100, .rlim_max = before_.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto most = std::min<std::int64_t>(static_cast<std::int64_t>(before_.rlim_max), 1 << 20);
  EXPECT_EQ(raise_file_limit(), most);
  rlimit now{};
  getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(static_cast<std::int64_t>(now.rlim_cur), most);
  EXPECT_EQ(raise_file_limit(), most);
}

TEST_F(FileLimit, StandsInTheHint) {
  const rlimit low{.rlim_cur = 100, .rlim_max = before_.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_CONTAINS(file_limit_hint(EMFILE),
                  "this process may have 100 files and connections open; ulimit -n");
  EXPECT_CONTAINS(file_limit_hint(ENFILE), "fs.file-max");
  EXPECT_EQ(file_limit_hint(ECONNREFUSED), "");
}

TEST_F(FileLimit, CountsWhatIsOpen) {
  const std::int64_t before = num_open_files();
  const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(num_open_files(), before + 1);
  close(file);
  EXPECT_EQ(num_open_files(), before);
}

}  // namespace
}  // namespace gossamer
