#pragma once
// CUDA calls return codes; here they become exceptions.

#include <string_view>

#include <cuda_runtime_api.h>

namespace gossamer {

/// Throws DeviceError with CUDA's own text unless `code` is cudaSuccess.
void cuda_check(cudaError_t code, std::string_view call);

/// Makes a device this thread's own for as long as it lives; longer, where this process has not
/// used the one before.
class CudaDeviceScope {
 public:
  explicit CudaDeviceScope(int device);
  ~CudaDeviceScope();
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;

 private:
  int device_;
  int before_ = 0;
};

}  // namespace gossamer
