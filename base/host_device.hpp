#pragma once
// Functions that the CUDA compiler has to make for both sides.

#ifdef __CUDACC__
#define GOSSAMER_HOST_DEVICE __host__ __device__
#else
#define GOSSAMER_HOST_DEVICE
#endif
