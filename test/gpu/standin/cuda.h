#pragma once
// CUDA's driver, as far as the project calls it: types alone, because its functions are looked up at
// run time (cudaGetDriverEntryPointByVersion).

#include <cstdint>

#include <cuda_runtime_api.h>

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
using CUstream = cudaStream_t;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using cuuint32_t = std::uint32_t;
constexpr unsigned CU_STREAM_WAIT_VALUE_EQ = 1;
