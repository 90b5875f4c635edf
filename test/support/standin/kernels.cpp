// Runs kernels. The threads of a thread block are fibres of the stream's thread. A fibre runs
// thread after thread to its end, until one of them comes to a barrier. A kernel without barriers
// therefore needs one fibre and no switch.

// The checked longjmp() takes a jump to another fibre's stack for an error.
#undef _FORTIFY_SOURCE

#include "test/support/standin/standin.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

namespace standin {
namespace {

constexpr std::size_t kStackBytes = std::size_t{128} << 10;

enum class Barrier { kNone, kPlain, kAnd, kCount };

/// A stack on which threads of a block run.
struct Fibre {
  Fibre();
  ~Fibre() { munmap(stack, kStackBytes); }
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  void* stack;
  /// Where it goes on; `start` until it has run for the first time.
  jmp_buf place;
  ucontext_t start;
  bool started = false;
  /// The thread that waits at a barrier.
  unsigned thread = 0;
};

/// Runs thread blocks on the calling thread.
class BlockRunner {
 public:
  void run(unsigned num_threads, const std::function<void()>& thread);
  /// Called by a thread of the block. Returns for how many threads `condition` held.
  unsigned wait(Barrier barrier, bool condition);
  void run_threads();

  std::minstd_rand& random() { return random_; }
  [[nodiscard]] unsigned num_threads() const { return num_threads_; }

 private:
  /// Lets the fibre run until it waits at a barrier (true) or has no thread left (false).
  bool resume(Fibre& fibre);
  void leave(Fibre& fibre);

  std::minstd_rand random_{1};
  std::vector<std::unique_ptr<Fibre>> fibres_;
  std::vector<Fibre*> idle_;
  jmp_buf scheduler_;
  Fibre* current_ = nullptr;

  const std::function<void()>* thread_ = nullptr;
  unsigned num_threads_ = 0;
  std::vector<unsigned> not_started_;
  unsigned num_ended_ = 0;
  Barrier barrier_ = Barrier::kNone;
  bool waits_ = false;
  /// For how many threads the condition holds at this barrier so far, and held at the last one.
  unsigned num_holding_ = 0;
  unsigned num_held_ = 0;
};

/// Fibres must not move to another thread: thread-local variables would be those of the old one.
BlockRunner& runner() {
  thread_local BlockRunner runner;
  return runner;
}

void fibre_main() { runner().run_threads(); }

Fibre::Fibre()
    : stack(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0)) {
  if (stack == MAP_FAILED) fail("there is no memory for the stack of a kernel's thread");
  getcontext(&start);
  start.uc_stack.ss_sp = stack;
  start.uc_stack.ss_size = kStackBytes;
  start.uc_link = nullptr;
  makecontext(&start, fibre_main, 0);
}

void BlockRunner::run_threads() {
  while (true) {
    while (!not_started_.empty()) {
      threadIdx.x = not_started_.back();
      not_started_.pop_back();
      (*thread_)();
      ++num_ended_;
    }
    waits_ = false;
    leave(*current_);
  }
}

void BlockRunner::leave(Fibre& fibre) {
  if (_setjmp(fibre.place) == 0) _longjmp(scheduler_, 1);
}

bool BlockRunner::resume(Fibre& fibre) {
  current_ = &fibre;
  if (_setjmp(scheduler_) == 0) {
    if (std::exchange(fibre.started, true)) _longjmp(fibre.place, 1);
    setcontext(&fibre.start);
  }
  return waits_;
}

unsigned BlockRunner::wait(Barrier barrier, bool condition) {
  if (barrier_ != Barrier::kNone && barrier_ != barrier) fail("threads wait at different barriers");
  barrier_ = barrier;
  num_holding_ += condition ? 1 : 0;
  Fibre& mine = *current_;
  mine.thread = threadIdx.x;
  waits_ = true;
  leave(mine);
  threadIdx.x = mine.thread;
  return num_held_;
}

void BlockRunner::run(unsigned num_threads, const std::function<void()>& thread) {
  thread_ = &thread;
  num_threads_ = num_threads;
  num_ended_ = 0;
  not_started_.resize(num_threads);
  std::iota(not_started_.begin(), not_started_.end(), 0U);
  std::ranges::shuffle(not_started_, random_);
  std::vector<Fibre*> waiting;
  while (!not_started_.empty()) {
    if (idle_.empty()) idle_.push_back(fibres_.emplace_back(std::make_unique<Fibre>()).get());
    Fibre* const fibre = idle_.back();
    if (!resume(*fibre)) continue;
    idle_.pop_back();
    waiting.push_back(fibre);
  }
  while (!waiting.empty()) {
    if (num_ended_ > 0) fail("a thread of a block has ended while others wait at a barrier");
    barrier_ = Barrier::kNone;
    num_held_ = std::exchange(num_holding_, 0);
    std::ranges::shuffle(waiting, random_);
    std::erase_if(waiting, [this](Fibre* fibre) {
      if (resume(*fibre)) return false;
      idle_.push_back(fibre);
      return true;
    });
  }
}

}  // namespace

void run_grid(unsigned num_blocks, unsigned num_threads, const std::function<void()>& thread) {
  std::vector<unsigned> blocks(num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0U);
  std::ranges::shuffle(blocks, runner().random());
  gridDim.x = num_blocks;
  for (const unsigned block : blocks) {
    blockIdx.x = block;
    runner().run(num_threads, thread);
  }
}

}  // namespace standin

void __syncthreads() { standin::runner().wait(standin::Barrier::kPlain, true); }
int __syncthreads_and(int condition) {
  const unsigned num_held = standin::runner().wait(standin::Barrier::kAnd, condition != 0);
  return num_held == standin::runner().num_threads() ? 1 : 0;
}
int __syncthreads_count(int condition) {
  return static_cast<int>(standin::runner().wait(standin::Barrier::kCount, condition != 0));
}
