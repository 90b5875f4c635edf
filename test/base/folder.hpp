#pragma once
// A folder for a test's files.

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/text.hpp"

namespace gossamer {

/// A folder of its own, gone at its end.
class Folder {
 public:
  Folder() : path_(std::filesystem::path(testing::TempDir()) / make_name()) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] std::vector<std::string> list() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }

 private:
  static std::string make_name() {
    static std::atomic<int> count = 0;
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    return concat("gossamer_", info->test_suite_name(), "_", info->name(), "_", getpid(), "_",
                  ++count);
  }
  std::filesystem::path path_;
};

}  // namespace gossamer
