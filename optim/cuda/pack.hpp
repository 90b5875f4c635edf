#pragma once
// A pack is a few elements that a GPU thread reads or writes in one access. The code runs on
// processors too, so that tests can use it there.

#include <array>
#include <cstdint>
#include <cstring>

#include "base/host_device.hpp"

namespace gossamer {

/// kCount neighbouring elements. kCount is a power of two; a pack has at most 16 bytes.
template <class T, std::int64_t kCount>
struct alignas(sizeof(T) * kCount) Pack {
  std::array<T, static_cast<std::size_t>(kCount)> lanes;
};

/// True if a pack of kCount elements may begin at `address`.
template <std::int64_t kCount, class T>
bool is_aligned(const T* address) {
  return reinterpret_cast<std::uintptr_t>(address) % alignof(Pack<T, kCount>) == 0;
}

// GPUs make one access. C++ on processors forbids reading elements through a pointer to another
// type, so the code there copies.
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
