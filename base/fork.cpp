#include "base/fork.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

namespace gossamer {
namespace {

using Word = std::uint64_t;
constexpr std::size_t kWordBits = 64;
/// For the largest number of descriptors that a usual system gives one process, 2^20.
constexpr std::size_t kNumWords = (std::size_t{1} << 20U) / kWordBits;

/// A bit for each descriptor that children do not get.
constinit std::array<std::atomic<Word>, kNumWords> closed_in_children{};
/// Words from here on have never had a bit.
constinit std::atomic<std::size_t> num_used_words{0};
constinit std::atomic<std::uint64_t> num_forks{0};

/// The last step of fork() in the child. Other threads of the parent may have held any lock, so
/// only calls of the system are safe here.
void begin_child() {
  num_forks.fetch_add(1);
  int nothing = -1;
  const std::size_t count = num_used_words.load();
  for (std::size_t w = 0; w < count; ++w) {
    // A later child of this one gets nothing to close: the numbers may be others' by then.
    Word word = closed_in_children[w].exchange(0);
    for (; word != 0; word &= word - 1) {
      const int fd =
          static_cast<int>(w * kWordBits + static_cast<std::size_t>(std::countr_zero(word)));
      if (nothing < 0) nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
      if (nothing < 0 || dup3(nothing, fd, O_CLOEXEC) < 0) close(fd);
    }
  }
  if (nothing >= 0) close(nothing);
}

void watch_forks() {
  static const int kWatches = pthread_atfork(nullptr, nullptr, begin_child);
  static_cast<void>(kWatches);
}

Word bit_of(std::size_t place) { return Word{1} << (place % kWordBits); }

}  // namespace

ClosedInChildren::ClosedInChildren(int fd) : fd_(fd) {
  const auto place = static_cast<std::size_t>(fd);
  if (fd < 0 || place / kWordBits >= kNumWords) {
    fd_ = -1;
    return;
  }
  watch_forks();
  std::size_t used = num_used_words.load();
  while (used <= place / kWordBits &&
         !num_used_words.compare_exchange_weak(used, place / kWordBits + 1)) {
  }
  closed_in_children[place / kWordBits].fetch_or(bit_of(place));
}

void ClosedInChildren::end() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  const auto place = static_cast<std::size_t>(fd);
  closed_in_children[place / kWordBits].fetch_and(~bit_of(place));
}

HomeProcess::HomeProcess() : num_forks_(0) {
  watch_forks();
  num_forks_ = num_forks.load();
}

bool HomeProcess::is_here() const { return num_forks.load() == num_forks_; }

}  // namespace gossamer
