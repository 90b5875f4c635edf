#pragma once
// GOSSAMER_HOST_DEVICE marks a function that the CUDA compiler compiles for the host and for the
// device. Other compilers see an empty macro.
//
// GOSSAMER_INLINE_ANYWHERE is for small functions in loops: other compilers also inline them
// always, which the loops of optim/simd.hpp need.

#ifdef __CUDACC__
#define GOSSAMER_HOST_DEVICE __host__ __device__
#define GOSSAMER_INLINE_ANYWHERE __host__ __device__ __forceinline__
#else
#define GOSSAMER_HOST_DEVICE
#define GOSSAMER_INLINE_ANYWHERE [[gnu::always_inline]] inline
#endif
