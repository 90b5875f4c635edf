#pragma once
// Switches denormal numbers off for a thread. When gradients vanish, moments decay into denormal
// numbers, and x86 processors need a hundred times as long for each operation on such a number.

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace gossamer {

/// While the object lives, its thread treats denormals as zero, if the processor can. The
/// destructor restores the thread's setting.
class FlushDenormals {
 public:
#if defined(__SSE__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
#else
  FlushDenormals() = default;
  ~FlushDenormals() = default;
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__SSE__)
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kDenormalsAreZero = 0x0040;
  unsigned saved_;
#endif
};

}  // namespace gossamer
