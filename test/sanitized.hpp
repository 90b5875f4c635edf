#pragma once
// Whether a sanitizer watches this build. Tests of long computations take fewer samples then.

namespace gossamer {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace gossamer
