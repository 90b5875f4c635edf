#pragma once
// GOSSAMER_HOST_DEVICE marks a function that the CUDA compiler compiles for the host and for the
// device. Other compilers see an empty macro.

#ifdef __CUDACC__
#define GOSSAMER_HOST_DEVICE __host__ __device__
#else
#define GOSSAMER_HOST_DEVICE
#endif
