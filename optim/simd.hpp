#pragma once
// Compiles a loop for several sets of vector instructions and chooses one when the program runs, so
// that one binary serves every processor. All paths give the same bits if the file is compiled with
// -ffp-contract=off, as this folder is. Otherwise the wider paths would fuse multiplications with
// additions.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace gossamer {

enum class SimdPath : std::uint8_t { kBaseline, kAvx2, kAvx512 };

constexpr std::string_view name_of(SimdPath path) {
  constexpr std::array<std::string_view, 3> kNames = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<std::size_t>(path)];
}

/// True if this processor has the instructions that the path needs.
inline bool is_available(SimdPath path) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (path == SimdPath::kAvx2) return __builtin_cpu_supports("avx2") != 0;
  if (path == SimdPath::kAvx512) {
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
           __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  }
#endif
  return path == SimdPath::kBaseline;
}

/// All paths of this processor, the widest last.
inline std::vector<SimdPath> available_simd_paths() {
  std::vector<SimdPath> paths;
  for (const SimdPath path : {SimdPath::kBaseline, SimdPath::kAvx2, SimdPath::kAvx512}) {
    if (is_available(path)) paths.push_back(path);
  }
  return paths;
}

inline SimdPath best_simd_path() {
  if (is_available(SimdPath::kAvx512)) return SimdPath::kAvx512;
  return is_available(SimdPath::kAvx2) ? SimdPath::kAvx2 : SimdPath::kBaseline;
}

/// Prefetches `bytes` bytes, from `ahead` bytes after `place` on. They may lie beyond the end of
/// the array: the processor then ignores the prefetch.
[[gnu::always_inline]] inline void prefetch(const void* place, std::uintptr_t ahead,
                                            std::uintptr_t bytes) {
  constexpr std::uintptr_t kCacheLine = 64;
  const auto first = reinterpret_cast<std::uintptr_t>(place) + ahead;
  for (std::uintptr_t line = 0; line < bytes; line += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(first + line));
  }
}

namespace internal {

#if defined(__x86_64__) && defined(__GNUC__)
// The body is inlined into each of these functions and vectorised for the function's instructions.
// Therefore the body must be a function object whose call operator is always_inline.
template <class Body>
[[gnu::target("avx2")]] void run_avx2(const Body& body) {
  body();
}

template <class Body>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]] void run_avx512(
    const Body& body) {
  body();
}
#endif

}  // namespace internal

/// Runs `body()` compiled for `path`, which must be available.
template <class Body>
void run_on(SimdPath path, const Body& body) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (path == SimdPath::kAvx512) return internal::run_avx512(body);
  if (path == SimdPath::kAvx2) return internal::run_avx2(body);
#else
  static_cast<void>(path);
#endif
  body();
}

}  // namespace gossamer
