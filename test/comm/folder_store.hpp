#pragma once
// A store for processes of one machine, in a folder: one file for each key.

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/hmac.hpp"
#include "comm/store.hpp"

namespace gossamer {

class FolderStore : public Store {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void set(const std::string& key, std::string_view value) override {
    const std::filesystem::path whole = folder_ / to_hex(key);
    const std::filesystem::path part = concat(whole.string(), ".", getpid());
    std::ofstream(part, std::ios::binary) << value;
    std::filesystem::rename(part, whole);
  }

  std::string get(const std::string& key, std::chrono::milliseconds limit) override {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (true) {
      if (std::string value = present(key); !value.empty()) return value;
      if (std::chrono::steady_clock::now() >= end) {
        throw CommError({.label = {.what = "start"}}, concat("nobody has set ", key));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  std::string compare_and_set(const std::string& key, std::string_view expected,
                              std::string_view desired) override {
    const int lock = open((folder_ / "lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX) != 0) throw std::runtime_error("no lock");
    std::string value = present(key);
    if (value == expected) {
      set(key, desired);
      value = desired;
    }
    close(lock);
    return value;
  }

 private:
  [[nodiscard]] std::string present(const std::string& key) const {
    std::ifstream file(folder_ / to_hex(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::filesystem::path folder_;
};

}  // namespace gossamer
