// Barriers and the flags that say which memory they order.
#pragma once

namespace metal {

enum class mem_flags : int {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
};
HOST_INLINE constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }

#ifdef HOST_STRICT
void threadgroup_barrier(mem_flags flags);
void simdgroup_barrier(mem_flags flags);
#else
HOST_INLINE void threadgroup_barrier(mem_flags flags, HOST_SITE) { host_threadgroup_barrier((int)flags, site); }
HOST_INLINE void simdgroup_barrier(mem_flags flags, HOST_SITE) { host_simdgroup_barrier((int)flags, site); }
#endif

}  // namespace metal
