// Element types, copies, and instructions of tensor cores and clusters for the quantised matmul of few rows.

// MLX writes the kernel's first line; this puts the size of cluster and block into it.
#undef __global__
#define __global__ __attribute__((global)) __cluster_dims__(QMM_SPLIT, 1, 1) __launch_bounds__(QMM_WARPS * 32, 1)

namespace qmm {

template <typename T>
struct Element;

template <>
struct Element<__nv_bfloat16> {
  // Or-ing a 4-bit q into the mantissa of 128 gives 128 + q exactly.
  static constexpr uint32_t mask = 0x000f000fu, base_bits = 0x43004300u, ones = 0x3f803f80u;
  static constexpr float base = 128.0f;
  static __device__ __forceinline__ uint32_t pair(uint32_t word, int i) {
    return ((word >> (4 * i)) & mask) | base_bits;
  }
  static __device__ __forceinline__ float lift(uint32_t bits) {
    return __uint_as_float(bits << 16);
  }
  static __device__ __forceinline__ __nv_bfloat16 round(float value) {
    return __float2bfloat16_rn(value);
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct Element<__half> {
  // Or-ing a 4-bit q four places up into the mantissa of 64 gives 64 + q exactly.
  static constexpr uint32_t mask = 0x00f000f0u, base_bits = 0x54005400u, ones = 0x3c003c00u;
  static constexpr float base = 64.0f;
  static __device__ __forceinline__ uint32_t pair(uint32_t word, int i) {
    return ((i ? word >> (4 * i - 4) : word << 4) & mask) | base_bits;
  }
  static __device__ __forceinline__ float lift(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  }
  static __device__ __forceinline__ __half round(float value) {
    return __float2half_rn(value);
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

// Copy 16 bytes to shared memory in the background, past the L1 cache; zeros if not `there`.
__device__ __forceinline__ void copy_once(void* to, const void* from, bool there) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               ::"r"(at), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

// Copy BYTES (4, 8 or 16) to shared memory in the background.
template <int BYTES>
__device__ __forceinline__ void copy(void* to, const void* from) {
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(BYTES) : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LATER>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

// COUNT neighbouring 16-bit values of shared memory, in one load.
template <int COUNT>
struct Halves {
  uint32_t bits[(COUNT + 1) / 2];
  __device__ __forceinline__ void load(const unsigned short* from) {
    if constexpr (COUNT == 1) {
      bits[0] = *from;
    } else if constexpr (COUNT == 2) {
      bits[0] = *reinterpret_cast<const uint32_t*>(from);
    } else if constexpr (COUNT == 4) {
      const uint2 all = *reinterpret_cast<const uint2*>(from);
      bits[0] = all.x, bits[1] = all.y;
    } else {
      const uint4 all = *reinterpret_cast<const uint4*>(from);
      bits[0] = all.x, bits[1] = all.y, bits[2] = all.z, bits[3] = all.w;
    }
  }
  __device__ __forceinline__ uint32_t operator[](int i) const {
    return (bits[i / 2] >> (i % 2 * 16)) & 0xffffu;
  }
};

__device__ __forceinline__ int cluster_size() {
  int blocks;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return blocks;
}

__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Four floats at `from` in the shared memory of block `rank` of this cluster.
__device__ __forceinline__ float4 distant(const float4* from, int rank) {
  uint32_t here = static_cast<uint32_t>(__cvta_generic_to_shared(from)), there;
  float4 value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(there));
  return value;
}

__device__ __forceinline__ float4 sum(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

}  // namespace qmm
