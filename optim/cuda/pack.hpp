#pragma once
// Elements that a thread of a GPU reads and writes in one access. Runs on processors too, for
// tests.

#include <array>
#include <cstdint>
#include <cstring>

#include "base/host_device.hpp"

namespace gossamer {

/// kCount elements that lie together; a power of two, at most 16 bytes.
template <class T, std::int64_t kCount>
struct alignas(sizeof(T) * kCount) Pack {
  std::array<T, static_cast<std::size_t>(kCount)> lanes;
};

/// A pack of kCount elements may begin there.
template <std::int64_t kCount, class T>
bool is_aligned(const T* address) {
  return reinterpret_cast<std::uintptr_t>(address) % alignof(Pack<T, kCount>) == 0;
}

// On GPUs one access; processors are not allowed to look at elements as something else.
template <class P, class T>
GOSSAMER_HOST_DEVICE P load_pack(const T* from) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const P*>(from);
#else
  P pack;
  std::memcpy(&pack, from, sizeof(P));
  return pack;
#endif
}

template <class P, class T>
GOSSAMER_HOST_DEVICE void store_pack(T* to, const P& pack) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<P*>(to) = pack;
#else
  std::memcpy(to, &pack, sizeof(P));
#endif
}

}  // namespace gossamer
