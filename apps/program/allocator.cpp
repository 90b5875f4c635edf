#include "apps/program/allocator.hpp"

#if defined(GOSSAMER_HAVE_JEMALLOC)
#include <jemalloc/jemalloc.h>
#elif defined(__GLIBC__)
#include <malloc.h>
#endif

#if defined(GOSSAMER_HAVE_JEMALLOC)
// jemalloc reads this when it starts; what MALLOC_CONF says counts on top. Pages are never given
// back, and large blocks live in the same arenas as all others, so that they are found again.
// NOLINTNEXTLINE: the name and type are jemalloc's
const char* malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0";
#endif

namespace gossamer::apps {

#if defined(GOSSAMER_HAVE_JEMALLOC)

void keep_freed_memory() {}
const char* allocator_name() { return "jemalloc"; }

#else

void keep_freed_memory() {
#if defined(__GLIBC__)
  // glibc before 2.38 cannot reuse the hole that an aligned block of the same size has left
  // (bug 14581), so a process that keeps larger blocks than this in its heap grows without end.
  constexpr int kKeep = 1024 * 1024;
  mallopt(M_MMAP_THRESHOLD, kKeep);
  mallopt(M_TRIM_THRESHOLD, 64 * kKeep);
#endif
}
const char* allocator_name() { return "the C library's"; }

#endif

}  // namespace gossamer::apps
