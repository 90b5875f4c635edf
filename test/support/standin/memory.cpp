// Device memory and pinned memory. Of the times in which no work of the device runs, the host
// cannot read or write device memory in every eighth: the pages are protected.

#include "test/support/standin/standin.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <sys/mman.h>

namespace standin {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{512} << 20;
constexpr std::size_t kAlignment = 512;
// As a float of any size, NaN.
constexpr int kNoValue = 0xFF;
// Protecting the pages takes longer than most work of the device.
constexpr int kProtectEvery = 8;

class Memory {
 public:
  Memory()
      : arena_(static_cast<char*>(mmap(nullptr, kArenaBytes, PROT_NONE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (arena_ == MAP_FAILED) fail("there is no memory for the device");
    free_[arena_] = kArenaBytes;
  }

  void* allocate_device(std::size_t bytes) {
    char* const found = take_device((bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (found != nullptr) forget_values(found, bytes);
    return found;
  }

  void* allocate_pinned(std::size_t bytes) {
    void* const data =
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (data == nullptr) return nullptr;
    std::memset(data, kNoValue, bytes);
    const std::lock_guard lock(mutex_);
    pinned_[static_cast<char*>(data)] = bytes;
    return data;
  }

  void release(void* address) {
    if (address == nullptr) return;
    auto* const data = static_cast<char*>(address);
    if (kind_of(data) == MemoryKind::kDevice) return release_device(data);
    const std::lock_guard lock(mutex_);
    if (pinned_.erase(data) == 0) fail("memory that CUDA did not give is freed");
    std::free(data);
  }

  MemoryKind kind_of(const void* address) {
    auto* const data = static_cast<char*>(const_cast<void*>(address));
    if (data >= arena_ && data < arena_ + kArenaBytes) return MemoryKind::kDevice;
    const std::lock_guard lock(mutex_);
    auto after = pinned_.upper_bound(data);
    if (after == pinned_.begin()) return MemoryKind::kPageable;
    --after;
    return data < after->first + after->second ? MemoryKind::kPinned : MemoryKind::kPageable;
  }

  void open() {
    const std::lock_guard lock(access_mutex_);
    if (num_accesses_++ == 0 && is_protected_) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    const std::lock_guard lock(access_mutex_);
    if (--num_accesses_ == 0 && ++num_idle_ % kProtectEvery == 0) protect(PROT_NONE);
  }

 private:
  void protect(int access) {
    if (mprotect(arena_, kArenaBytes, access) != 0) fail("mprotect() has failed");
    is_protected_ = access == PROT_NONE;
  }

  static void forget_values(char* data, std::size_t bytes) {
    const DeviceAccess access;
    std::memset(data, kNoValue, bytes);
  }

  char* take_device(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      const auto [begin, size] = *range;
      if (size < bytes) continue;
      free_.erase(range);
      if (size > bytes) free_[begin + bytes] = size - bytes;
      used_[begin] = bytes;
      return begin;
    }
    return nullptr;
  }

  void release_device(char* data) {
    std::size_t bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto used = used_.find(data);
      if (used == used_.end()) fail("device memory is freed that is not in use");
      bytes = used->second;
      used_.erase(used);
    }
    forget_values(data, bytes);
    const std::lock_guard lock(mutex_);
    auto range = free_.emplace(data, bytes).first;
    const auto next = std::next(range);
    if (next != free_.end() && range->first + range->second == next->first) {
      range->second += next->second;
      free_.erase(next);
    }
    if (range == free_.begin()) return;
    const auto before = std::prev(range);
    if (before->first + before->second != range->first) return;
    before->second += range->second;
    free_.erase(range);
  }

  char* const arena_;
  std::mutex mutex_;
  // By their first byte; guarded by mutex_.
  std::map<char*, std::size_t> free_;
  std::map<char*, std::size_t> used_;
  std::map<char*, std::size_t> pinned_;
  std::mutex access_mutex_;
  int num_accesses_ = 0;  // guarded by access_mutex_
  int num_idle_ = 0;      // likewise
  bool is_protected_ = true;
};

/// Lives until the process ends, because threads of streams do.
Memory& memory() {
  static auto* const kMemory = new Memory;
  return *kMemory;
}

}  // namespace

MemoryKind kind_of(const void* address) { return memory().kind_of(address); }
void* allocate_device(std::size_t bytes) { return memory().allocate_device(bytes); }
void* allocate_pinned(std::size_t bytes) { return memory().allocate_pinned(bytes); }
void release(void* address) { memory().release(address); }
DeviceAccess::DeviceAccess() { memory().open(); }
DeviceAccess::~DeviceAccess() { memory().close(); }

}  // namespace standin
