// Element types, copies into shared memory, and the tensor cores' instructions, for attention of the nodes of a tree.

// MLX writes the kernel's first line; this puts the size of a block into it.
#undef __global__
#define __global__ __attribute__((global)) __launch_bounds__(ATTENTION_THREADS, ATTENTION_BLOCKS)

namespace tree_attention {

// A row's reference is what its weights are relative to: weight = 2^(score - reference). It begins with the lowest, and
// a column that is not seen scores far below that: all are finite, and so are their differences.
constexpr float LOWEST = -1e30f, UNSEEN = -2e30f;
// The highest weight may be 2^HEADROOM: in float16 weights below 2^-24 vanish.
constexpr float HEADROOM = 8.0f;
constexpr float LOG2_E = 1.44269504088896340736f;

template <typename T>
struct Element;

template <>
struct Element<__nv_bfloat16> {
  static __device__ __forceinline__ uint32_t pair(float low, float high) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct Element<__half> {
  static __device__ __forceinline__ uint32_t pair(float low, float high) {
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

__device__ __forceinline__ float power(float exponent) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(exponent));
  return value;
}

__device__ __forceinline__ uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Four matrices of 8 x 8 16-bit elements, of each the two that the tensor cores want from a lane. Lanes 0 to 7 give the
// addresses of the first one's rows, lanes 8 to 15 of the second one's, and so on.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void end_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all of this thread's copies are there but those of the latest two groups.
__device__ __forceinline__ void await_all_but_two_groups() {
  asm volatile("cp.async.wait_group 2;" ::: "memory");
}

// Whether any eight neighbouring elements, from a multiple of eight on, may be copied at once.
template <typename T>
__device__ __forceinline__ bool are_wide(const T* rows, long long head_step, long long row_step, long long step) {
  const bool aligned = reinterpret_cast<size_t>(rows) % (8 * sizeof(T)) == 0;
  return aligned && step == 1 && head_step % 8 == 0 && row_step % 8 == 0;
}

// Eight neighbouring elements into shared memory, zeros if they are not `there`. Those that are wide are on their way
// until their group is awaited.
template <typename T>
__device__ __forceinline__ void copy_eight(T* to, const T* from, long long step, bool wide, bool there) {
  if (wide) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      to[i] = there ? from[i * step] : static_cast<T>(0.0f);
    }
  }
}

// COLUMNS rows of D elements from `first` on into shared memory, PITCH apart. Rows at `end` and behind it become zeros
// and are not read.
template <typename T, int COLUMNS, int D, int PITCH, int THREADS>
__device__ __forceinline__ void copy_columns(
    T* to, const T* rows, int row_step, long long step, bool wide, int first, int end, int keep, int skipped) {
  constexpr int EIGHTS = D / 8;
#pragma unroll 4
  for (int item = threadIdx.x; item < COLUMNS * EIGHTS; item += THREADS) {
    const int row = item / EIGHTS, element = item % EIGHTS * 8, seen = first + row;
    const int column = seen < keep ? seen : seen + skipped;
    const bool there = seen < end;
    const T* from = rows + (there ? static_cast<long long>(column) * row_step + element * step : 0);
    copy_eight<T>(to + row * PITCH + element, from, step, wide, there);
  }
}

// Over the four lanes that share the rows of a product.
__device__ __forceinline__ float sum_of_four(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

__device__ __forceinline__ float max_of_four(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float sum_of_warp(float value) {
  for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

__device__ __forceinline__ float max_of_warp(float value) {
  for (int other = 16; other > 0; other /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, other));
  return value;
}

}  // namespace tree_attention
