#pragma once
// What kernels are written with, and their launch; standin.hpp says how they run.

#include <math.h>  // NOLINT(modernize-deprecated-headers): kernels call isnan() without std::

#include <atomic>
#include <bit>
#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>

#include <cuda_runtime_api.h>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
// The blocks of a launch run one after another on one thread.
#define __shared__ static thread_local
// Stands behind the type: such a parameter is one object for all threads of the grid.
#define __grid_constant__ &

struct uint3 {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};
struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  dim3(unsigned count = 1) : x(count) {}  // NOLINT(google-explicit-constructor): as CUDA has it
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

inline thread_local constinit uint3 threadIdx = {};
inline thread_local constinit uint3 blockIdx = {};
inline thread_local constinit uint3 gridDim = {};

void __syncthreads();
int __syncthreads_and(int condition);
int __syncthreads_count(int condition);

template <class T>
T atomicAdd(T* sum, T value) {
  return std::atomic_ref(*sum).fetch_add(value);
}
inline unsigned atomicOr(unsigned* bits, unsigned value) {
  return std::atomic_ref(*bits).fetch_or(value);
}
template <class T>
T atomicMax(T* largest, T value) {
  const std::atomic_ref all(*largest);
  T seen = all.load();
  while (value > seen && !all.compare_exchange_weak(seen, value)) {
  }
  return seen;
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int max(int a, int b) { return a > b ? a : b; }

namespace standin {
/// `kernel` tells one kernel from another.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> thread);
}  // namespace standin

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  static_assert((std::is_trivially_copyable_v<std::remove_cvref_t<Parameters>> && ...),
                "a launch copies its arguments byte by byte");
  static_assert((std::size_t{0} + ... + sizeof(std::remove_cvref_t<Parameters>)) <= 32764,
                "the most that a kernel's parameters may take");
  const auto copies = std::make_shared<const std::tuple<std::remove_cvref_t<Parameters>...>>(
      static_cast<std::remove_cvref_t<Parameters>>(arguments)...);
  return standin::launch(*config, reinterpret_cast<const void*>(kernel),
                         [kernel, copies] { std::apply(kernel, *copies); });
}
