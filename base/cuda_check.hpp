#pragma once
// Helpers around the CUDA runtime: error codes become exceptions, and a scope selects a device.

#include <string_view>

#include <cuda_runtime_api.h>

namespace gossamer {

/// Throws DeviceError with `call` and CUDA's own text unless `code` is cudaSuccess.
void cuda_check(cudaError_t code, std::string_view call);

/// Makes `device` the calling thread's current CUDA device. The destructor restores the previous
/// device, except where this process has no context on the previous device: restoring would create
/// one, so `device` then stays current.
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
