#pragma once
// A Store for ranks that are threads of one process.
//
// Thread safety: any thread may call anything, so all ranks may share one.

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/store.hpp"

namespace gossamer {

class MemoryStore : public Store {
 public:
  void set(const std::string& key, std::string_view value) override {
    {
      const std::lock_guard lock(mutex_);
      values_[key] = value;
    }
    changed_.notify_all();
  }

  std::string get(const std::string& key, std::chrono::milliseconds limit) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [&] { return values_.contains(key); })) {
      throw CommError({.label = {.what = "start"}}, concat("nobody has set ", key));
    }
    return values_[key];
  }

  std::string compare_and_set(const std::string& key, std::string_view expected,
                              std::string_view desired) override {
    std::string result;
    {
      const std::lock_guard lock(mutex_);
      const auto found = values_.find(key);
      const std::string present = found == values_.end() ? "" : found->second;
      if (present != expected) return present;
      result = values_[key] = desired;
    }
    changed_.notify_all();
    return result;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

}  // namespace gossamer
