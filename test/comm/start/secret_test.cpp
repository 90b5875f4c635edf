// Secrets of runs, and the files that hold them.

#include "comm/start/secret.hpp"

#include "test/apps/folder.hpp"
#include "test/base/thrown.hpp"

#include <set>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/error.hpp"

namespace gossamer {
namespace {

using apps::write_bytes;

const std::string kSecret = "0123456789abcdef";

TEST(Secret, IsFreshEveryTime) {
  std::set<std::string> seen;
  for (int i = 0; i < 20; ++i) {
    const std::string secret = fresh_secret();
    EXPECT_EQ(secret.size(), 64U);
    EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos) << secret;
    EXPECT_NO_THROW(check_secret(secret));
    EXPECT_TRUE(seen.insert(secret).second);
  }
}

TEST(Secret, IsReadFromAFileOfThisUserAlone) {
  const Folder folder;
  const std::string path = folder.file("secret");
  write_secret_file(path, kSecret);
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(read_secret_file(path), kSecret);
  for (const mode_t mode : {0640U, 0604U, 0620U, 0602U, 0644U}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const std::string what = what_of<ConfigError>([&] { read_secret_file(path); });
    EXPECT_CONTAINS(what, "chmod 600 " + path) << mode << ": " << what;
  }
}

TEST(Secret, IsNotReplaced) {
  const Folder folder;
  const std::string path = folder.file("secret");
  write_secret_file(path, kSecret);
  const std::string what = what_of<ConfigError>([&] { write_secret_file(path, fresh_secret()); });
  EXPECT_CONTAINS(what, "command line: -o: " + path + " exists");
  EXPECT_EQ(read_secret_file(path), kSecret);
  EXPECT_CONTAINS(
      what_of<ConfigError>([&] { write_secret_file(folder.file("no/secret"), kSecret); }),
      "cannot be written");
}

TEST(Secret, IsRefusedWhereItIsNone) {
  const Folder folder;
  const auto refusal = [&](const std::string& bytes) {
    const std::string path = folder.file("file");
    write_bytes(path, bytes);
    chmod(path.c_str(), 0600);
    return what_of<ConfigError>([&] { read_secret_file(path); });
  };
  EXPECT_CONTAINS(refusal("short\n"), "has 5 characters");
  EXPECT_CONTAINS(refusal(""), "has 0 characters");
  EXPECT_CONTAINS(refusal(std::string(5000, 'x')), "longer than a secret");
  EXPECT_EQ(refusal(kSecret + " \r\n\n"), "");
  EXPECT_CONTAINS(what_of<ConfigError>([&] { read_secret_file(folder.file("none")); }),
                  "gossamer secret");
  EXPECT_CONTAINS(what_of<ConfigError>([&] { read_secret_file(folder.file("")); }), "is no file");
}

}  // namespace
}  // namespace gossamer
