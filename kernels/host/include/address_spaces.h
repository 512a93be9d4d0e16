// Metal's address spaces as the compiler knows them, for both ways in which a kernel is compiled.
//
// Executable build (C++20, host target): numbered address spaces. Clang keeps them apart in types, and in the IR text
// that the meter reads, while the code generator treats them all as ordinary memory.
// Strict pass (C++ for OpenCL, HOST_STRICT): OpenCL's own address spaces, which also forbid casts from one to another.
#pragma once

#ifdef HOST_STRICT
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define HOST_DEVICE __global
#define HOST_CONSTANT __constant
#define HOST_THREADGROUP __local
#define HOST_THREAD __private
#else
#define HOST_DEVICE __attribute__((address_space(1)))
#define HOST_CONSTANT __attribute__((address_space(2)))
#define HOST_THREADGROUP __attribute__((address_space(3)))
#define HOST_THREAD
#endif

#define HOST_INLINE static inline __attribute__((always_inline))
