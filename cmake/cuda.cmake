# CUDA and NCCL, for the preset `cuda`. nvcc need not be on PATH, and no GPU is needed.
find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH
             PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "OUTRIDER_CUDA is on, but there is no nvcc on PATH, under CUDA_HOME, or in "
                      "/usr/local/cuda/bin; expected CUDA 13")
endif()
# 90a: H100 and H200. The rest is the preset `cuda-all`.
set(CMAKE_CUDA_ARCHITECTURES 90a CACHE STRING "GPU architectures to build kernels for")
# As on the CPU, only what the code says is fused is.
string(APPEND CMAKE_CUDA_FLAGS " --fmad=false --expt-relaxed-constexpr"
       " -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-ffp-contract=off")
enable_language(CUDA)
# CMake 3.25 does not know how nvcc is told C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
  message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} is of CUDA ${CMAKE_CUDA_COMPILER_VERSION}; expected "
                      "13 or later")
endif()
# CMake 3.25 expects a library that CUDA 13 has no more.
if(CMAKE_VERSION VERSION_LESS 3.26)
  add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
endif()
find_package(CUDAToolkit REQUIRED)

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h nccl_version REGEX "^#define NCCL_VERSION_CODE [0-9]+$")
string(REGEX REPLACE "[^0-9]" "" nccl_version "${nccl_version}")
if(NOT nccl_version GREATER_EQUAL 22800)  # ncclAlltoAll
  message(FATAL_ERROR "${NCCL_INCLUDE_DIR}/nccl.h counts its version as '${nccl_version}'; expected "
                      "22800 or later, which is NCCL 2.28")
endif()
