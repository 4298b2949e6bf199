// Marks a function that kernels of both sides call.
#pragma once

#ifdef __CUDACC__
#define OUTRIDER_HOST_DEVICE __host__ __device__
#else
#define OUTRIDER_HOST_DEVICE
#endif
