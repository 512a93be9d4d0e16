// Element types, loads, and the tensor cores' instruction for the quantised matmul of few rows.

// MLX writes the kernel's first line; this puts the size of a block into it.
#undef __global__
#define __global__ __attribute__((global)) __launch_bounds__(QMM_WARPS * 32, 1)

namespace qmm {

// (word & mask) | base in one instruction, for which one of them has to be in a register.
__device__ __forceinline__ uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t base) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(word), "r"(mask), "r"(base));
  return result;
}

template <typename T>
struct Element;

template <>
struct Element<__nv_bfloat16> {
  // Or-ing a 4-bit q into the mantissa of 128 gives 128 + q exactly.
  static constexpr uint32_t mask = 0x000f000fu, base_bits = 0x43004300u, ones = 0x3f803f80u;
  static constexpr float base = 128.0f;
  static __device__ __forceinline__ uint32_t pair(uint32_t word, int i) {
    return masked_or(word >> (4 * i), mask, base_bits);
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
    return masked_or(i ? word >> (4 * i - 4) : word << 4, mask, base_bits);
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

// The address of shared memory as instructions take it.
__device__ __forceinline__ uint32_t shared(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Copy BYTES (4, 8 or 16) to shared memory in the background, 16 past the L1 cache.
template <int BYTES>
__device__ __forceinline__ void copy(uint32_t to, const void* from) {
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
  }
}

// Copy 16 bytes, or zeros if not `there`.
__device__ __forceinline__ void copy_if(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ __forceinline__ void write(uint32_t to, unsigned short value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(value) : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LATER>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

// Up to four words of shared memory into to[first], to[first + 1], ...
template <int COUNT>
__device__ __forceinline__ void read(uint32_t (&to)[COUNT], int first, const void* from) {
  if constexpr (COUNT == 1) {
    to[0] = *static_cast<const uint32_t*>(from);
  } else if constexpr (COUNT == 2) {
    const uint2 all = *static_cast<const uint2*>(from);
    to[0] = all.x, to[1] = all.y;
  } else {
    const uint4 all = *static_cast<const uint4*>(from);
    to[first] = all.x, to[first + 1] = all.y, to[first + 2] = all.z, to[first + 3] = all.w;
  }
}

// Whether COUNT 16-bit values can be read at once.
template <int COUNT>
__device__ __forceinline__ bool aligned(const void* from) {
  return reinterpret_cast<size_t>(from) % (COUNT * 2) == 0;
}

// Eight neighbouring 16-bit values at any address.
template <typename T>
__device__ __forceinline__ uint4 load_eight(const T* from) {
  const unsigned short* one = reinterpret_cast<const unsigned short*>(from);
  uint4 all;
  all.x = one[0] | one[1] << 16;
  all.y = one[2] | one[3] << 16;
  all.z = one[4] | one[5] << 16;
  all.w = one[6] | one[7] << 16;
  return all;
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

__device__ __forceinline__ float4 sum(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Rounds what a lane of the tensor cores' result holds into y [M, N]. place: [tile][TALL][ROWS / 8][lane].
template <int ROWS, int TALL, typename T>
__device__ __forceinline__ void store(T* y, float4 value, int first_tile, int place, int M, int N) {
  const int fragment = place / 32 % (ROWS / 8), lane = place % 32;
  const int row = first_tile * 16 * TALL + place / (ROWS * 4) * 16 + lane / 4, m = fragment * 8 + lane % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r < N) {
      if (m < M) {
        y[static_cast<size_t>(m) * N + row + 8 * r] = Element<T>::round(r ? value.z : value.x);
      }
      if (m + 1 < M) {
        y[static_cast<size_t>(m + 1) * N + row + 8 * r] = Element<T>::round(r ? value.w : value.y);
      }
    }
  }
}

}  // namespace qmm
