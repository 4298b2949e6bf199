// cudaStream_t without the headers of CUDA, for headers that only name it.
#pragma once

struct CUstream_st;
using cudaStream_t = CUstream_st*;
