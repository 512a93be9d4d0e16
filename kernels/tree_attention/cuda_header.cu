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

// Whether any eight neighbouring elements, from a multiple of eight on, may be copied at once, of rows that follow each
// other within 32 bits.
template <typename T>
__device__ __forceinline__ bool are_wide(const T* rows, long long head_step, long long row_step, long long step) {
  const bool aligned = reinterpret_cast<size_t>(rows) % (8 * sizeof(T)) == 0;
  return aligned && step == 1 && head_step % 8 == 0 && row_step % 8 == 0 && row_step >> 32 == 0;
}

// Sixteen bytes into shared memory, zeros if they are not `there`. They are on their way until their group is awaited.
__device__ __forceinline__ void copy_wide(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// The queries of a block's rows into shared memory, PITCH apart; zeros behind the last row. A row is the pair of a query
// head, one of those that share the key head, and a node.
template <typename T, int ROWS, int D, int PITCH, int THREADS>
__device__ __forceinline__ void copy_queries(
    T* to, const T* queries, long long head_step, long long row_step, long long step, int first, int rows, int nodes) {
  constexpr int EIGHTS = D / 8;
  const bool wide = are_wide<T>(queries, head_step, row_step, step);
#pragma unroll 1
  for (int item = threadIdx.x; item < ROWS * EIGHTS; item += THREADS) {
    const int row = first + item / EIGHTS, element = item % EIGHTS * 8;
    const bool there = row < rows;
    const T* from = queries + (there ? row / nodes * head_step + row % nodes * row_step + element * step : 0);
    T* target = to + item / EIGHTS * PITCH + element;
    if (wide) {
      copy_wide(shared_address(target), from, there);
    } else {
#pragma unroll 1
      for (int i = 0; i < 8; ++i) target[i] = there ? from[i * step] : static_cast<T>(0.0f);
    }
  }
}

// Where the keys or the values of a head lie. Behind the first `keep` columns so many are `skipped`.
template <typename T>
struct Columns {
  const T* rows;
  long long row_step, step;
  bool wide;
  int end, keep, skipped;

  // COUNT rows of D elements from `first` on into shared memory, PITCH apart. Rows at the end and behind it become
  // zeros and are not read. `to` is the shared address of `place`.
  template <int COUNT, int D, int PITCH, int THREADS>
  __device__ __forceinline__ void copy(T* place, uint32_t to, int first) const {
    constexpr int EIGHTS = D / 8, EVERY = THREADS / EIGHTS;
    if (wide) {
      // A thread takes every so manyth row, at the same elements.
      const int own_row = threadIdx.x / EIGHTS, element = threadIdx.x % EIGHTS * 8;
      const uint32_t own_to = to + (own_row * PITCH + element) * sizeof(T);
      const T* const own_rows = rows + element;
#pragma unroll
      for (int row = 0; row < COUNT; row += EVERY) {
        if ((THREADS % EIGHTS == 0 || own_row < EVERY) && (row + EVERY <= COUNT || own_row + row < COUNT)) {
          const int seen = first + own_row + row, read = min(seen, end - 1);
          const unsigned column = read < keep ? read : read + skipped;
          const T* from = own_rows + static_cast<unsigned long long>(column) * static_cast<unsigned>(row_step);
          copy_wide(own_to + row * PITCH * sizeof(T), from, seen < end);
        }
      }
    } else {
#pragma unroll 1
      for (int item = threadIdx.x; item < COUNT * D; item += THREADS) {
        const int row = item / D, element = item % D, seen = first + row;
        const long long column = seen < keep ? seen : seen + skipped;
        place[row * PITCH + element] = seen < end ? rows[column * row_step + element * step] : static_cast<T>(0.0f);
      }
    }
  }
};

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
