#pragma once
// Whether a sanitizer watches this build. Tests of long computations take fewer samples then.

namespace gossamer {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// The thread sanitizer takes ten times as long, and sees the same threads in most variants.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

}  // namespace gossamer
