// What a CUDA text uses of CUDA, for the host: types, the thread's place, what a warp and a block do together.
//
// Shared memory is the runtime's threadgroup memory, a warp its simdgroup. Pointers have no address space in CUDA, so the
// meter asks of each one at run time which memory it points into.
#pragma once

#include "host_abi.h"
#include "site.h"

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef __SIZE_TYPE__ size_t;

typedef __bf16 __nv_bfloat16;
typedef _Float16 __half;

#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float exp2f(float x) { return __builtin_exp2f(x); }
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }

namespace cuda_host {

template <class To, class From> inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// Byte i of the result is the one of b:a that nibble i of the selector names.
inline uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = (uint64_t)b << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; i++) result |= (uint32_t)(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  return result;
}

// Blocks run one after the other, so what all threads of one see needs no more than one place.
struct Uint3 { unsigned x, y, z; };
inline Uint3 block_index, grid_size, block_size;
inline Uint3 thread_index() { return {host_simdgroup() * HOST_LANES + host_lane(), 0, 0}; }

// ---------------------------------------------------------------- shared memory

inline char* shared_begin;  // the address 0 of shared memory: the page where the runtime keeps the first variable

inline void* shared_variable(int id, const char* name, long bytes, HostSite site) {
  void* variable = host_threadgroup_variable(id, name, bytes, 128, site);
  if (!shared_begin) shared_begin = (char*)((size_t)variable & ~(size_t)4095);
  return variable;
}
// `__shared__ T name[N];` becomes `auto& name = cuda_host::shared<T[N]>(0, "name");`
template <class T> inline T& shared(int id, const char* name, HOST_SITE) {
  return *(T*)shared_variable(id, name, sizeof(T), site);
}
// `extern __shared__ T name[];` becomes `auto* const name = cuda_host::dynamic_shared<T>(0, "name");`
template <class T> inline T* dynamic_shared(int id, const char* name, HOST_SITE) {
  return (T*)shared_variable(id, name, HOST_SHARED_BYTES, site);
}

// ---------------------------------------------------------------- accesses

#ifdef HOST_METERED
constexpr bool metered = true;
#else
constexpr bool metered = false;
#endif

// The runtime's buffers lie in one stretch of memory with gaps of this size around each; the last one is the host's own.
enum { kGap = 1 << 20, kSharedArena = 1 << 20 };
inline char *buffers_begin, *buffers_end;

inline bool is_shared(const char* pointer) {
  return shared_begin && pointer >= shared_begin && pointer < shared_begin + kSharedArena;
}
inline bool is_buffer(const char* pointer) {
  return pointer >= buffers_begin - kGap && pointer < buffers_end + kGap;
}

// ---------------------------------------------------------------- warps

template <class T> inline T of_lane(T value, unsigned from, HostSite site) {
  unsigned active;
  const char* slots = host_simd_collective(&value, sizeof(T), site, nullptr, &active);
  if (!(active >> from & 1)) host_missing_lane(site);
  T result;
  __builtin_memcpy(&result, slots + HOST_SLOT_BYTES * from, sizeof(T));
  return result;
}

template <class Result, unsigned count, class From>
inline void together(Result (&results)[count], const From& contribution, HostCombine combine, HostSite site) {
  static_assert(sizeof(From) <= HOST_SLOT_BYTES && sizeof(results) <= HOST_SLOT_BYTES);
  unsigned active;
  const char* slot = host_simd_collective(&contribution, sizeof(From), site, combine, &active);
  if (active != ~0u) host_missing_lane(site);
  __builtin_memcpy(results, slot, sizeof(results));
}

}  // namespace cuda_host

inline float __uint_as_float(uint32_t bits) { return cuda_host::bits_as<float>(bits); }
inline __half __ushort_as_half(unsigned short bits) { return cuda_host::bits_as<__half>(bits); }
inline float __half2float(__half value) { return (float)value; }
inline __half __float2half_rn(float value) { return (__half)value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return (__nv_bfloat16)value; }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) { return cuda_host::byte_perm(a, b, selector); }

#define threadIdx (cuda_host::thread_index())
#define blockIdx (cuda_host::block_index)
#define gridDim (cuda_host::grid_size)
#define blockDim (cuda_host::block_size)

inline void __syncthreads(HOST_SITE) { host_threadgroup_barrier(3, site); }
inline void __syncwarp(uint32_t = ~0u, HOST_SITE) { host_simdgroup_barrier(3, site); }
template <class T> inline T __shfl_xor_sync(uint32_t, T value, int mask, HOST_SITE) {
  return cuda_host::of_lane(value, host_lane() ^ mask, site);
}
template <class T> inline T __shfl_sync(uint32_t, T value, int lane, HOST_SITE) {
  return cuda_host::of_lane(value, lane & 31, site);
}
inline uint32_t __ballot_sync(uint32_t, bool predicate, HOST_SITE) {
  unsigned active;
  int value = predicate;
  const char* slots = host_simd_collective(&value, sizeof value, site, nullptr, &active);
  uint32_t all = 0;
  for (int lane = 0; lane < HOST_LANES; lane++) all |= (active >> lane & 1 && slots[HOST_SLOT_BYTES * lane]) << lane;
  return all;
}
inline bool __any_sync(uint32_t mask, bool predicate, HOST_SITE) { return __ballot_sync(mask, predicate, site) != 0; }

inline void __threadfence() {}
template <class T> inline T __ldcg(const T* from, HOST_SITE) {
  if (cuda_host::metered) from = (const T*)host_load_device((void*)from, sizeof(T), site, alignof(T));
  return *from;
}
inline uint32_t atomicAdd(uint32_t* to, uint32_t value, HOST_SITE) {
  to = (uint32_t*)host_atomic_device(to, sizeof *to, site, HOST_UPDATE);
  const uint32_t before = *to;
  *to = before + value;
  return before;
}

inline size_t __cvta_generic_to_shared(const void* pointer) { return (char*)pointer - cuda_host::shared_begin; }

// The meter's hooks: any pointer of the author's text, whatever it points to.
extern "C" {
__attribute__((used)) inline void* cuda_host_load(void* pointer, long bytes, HostSite site, long alignment) {
  if (cuda_host::is_shared((char*)pointer)) return host_load_threadgroup(pointer, bytes, site, alignment);
  if (cuda_host::is_buffer((char*)pointer)) return host_load_device(pointer, bytes, site, alignment);
  return pointer;
}
__attribute__((used)) inline void* cuda_host_store(void* pointer, long bytes, HostSite site, long alignment) {
  if (cuda_host::is_shared((char*)pointer)) return host_store_threadgroup(pointer, bytes, site, alignment);
  if (cuda_host::is_buffer((char*)pointer)) return host_store_device(pointer, bytes, site, alignment);
  return pointer;
}
}

namespace mlx::core::cu {
struct Shape {
  int32_t of[8];
  int32_t operator[](int i) const { return of[i]; }
};
struct Strides {
  int64_t of[8];
  int64_t operator[](int i) const { return of[i]; }
};
}  // namespace mlx::core::cu

#include "ptx.h"

namespace cuda_host {

// What every thread does first. first, last: of the buffers.
inline void begin(void* first, void* last, const HostThread* thread) {
  const auto uint3 = [](HostUint3 of) { return Uint3{of.x, of.y, of.z}; };
  block_index = uint3(thread->threadgroup_position);
  grid_size = uint3(thread->threadgroups_per_grid);
  block_size = uint3(thread->threads_per_threadgroup);
  buffers_begin = (char*)first, buffers_end = (char*)last;
  ptx::forget_copies();
}

}  // namespace cuda_host
