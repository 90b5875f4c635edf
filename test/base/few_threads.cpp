#include "test/base/few_threads.hpp"

#include <atomic>
#include <cerrno>
#include <limits>

#include <dlfcn.h>
#include <pthread.h>

namespace gossamer {
namespace {

constexpr int kManyThreads = std::numeric_limits<int>::max();

std::atomic<int> num_threads_left = kManyThreads;

}  // namespace

FewThreads::FewThreads(int num_threads) { num_threads_left = num_threads; }
FewThreads::~FewThreads() { num_threads_left = kManyThreads; }

}  // namespace gossamer

/// Stands before the function of the system, which the C++ library calls.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) noexcept {
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (gossamer::num_threads_left-- <= 0) return EAGAIN;
  return create(thread, attributes, body, argument);
}
