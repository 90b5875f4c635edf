#pragma once
// CUDA's driver, as far as the project calls it: types alone, because its functions are looked up at
// run time (cudaGetDriverEntryPointByVersion).

#include <cuda_runtime_api.h>

enum CUresult { CUDA_SUCCESS = 0 };
using CUdevice = int;
