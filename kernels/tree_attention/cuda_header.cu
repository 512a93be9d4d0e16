// MLX writes the kernel's first line; this puts it there that two blocks of 8 warps shall fit a multiprocessor.
#undef __global__
#define __global__ __attribute__((global)) __launch_bounds__(256, 2)

// The score of a column that is not seen, and below all that are: finite, and so is its distance from any score.
#define ATTENTION_LOWEST (-1e30f)

// Whether any four neighbouring elements, from a multiple of four on, may be loaded at once.
template <typename T>
__device__ inline bool attention_wide(const T* rows, long long head_step, long long row_step, long long step) {
  const bool aligned = reinterpret_cast<unsigned long long>(rows) % (4 * sizeof(T)) == 0;
  return aligned && step == 1 && head_step % 4 == 0 && row_step % 4 == 0;
}

// Four neighbouring elements of a row as float.
template <typename T>
__device__ inline float4 attention_quad(const T* row, long long step, bool wide) {
  if (wide) {
    struct alignas(4 * sizeof(T)) Four {
      T of[4];
    };
    const Four four = *reinterpret_cast<const Four*>(row);
    return make_float4(static_cast<float>(four.of[0]), static_cast<float>(four.of[1]), static_cast<float>(four.of[2]),
                       static_cast<float>(four.of[3]));
  }
  return make_float4(static_cast<float>(row[0]), static_cast<float>(row[step]), static_cast<float>(row[2 * step]),
                     static_cast<float>(row[3 * step]));
}

__device__ inline float attention_dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

__device__ inline float attention_sum(float value) {
  for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

__device__ inline float attention_max(float value) {
  for (int other = 16; other > 0; other /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, other));
  return value;
}

// Copies one slab of the rows of a tile into shared memory: 32 rows of SLAB elements, as float, PITCH quads apart.
// Neighbouring threads take neighbouring quads of a row. Rows at `end` and behind it become zeros and are not read.
template <typename T, int SLAB, int PITCH, int THREADS>
__device__ inline void attention_stage(
    float4* stage, const T* rows, long long row_step, long long step, bool wide, int tile, int end, int keep,
    int skipped) {
  constexpr int QUADS = SLAB / 4;
#pragma unroll 4
  for (int item = threadIdx.x; item < 32 * QUADS; item += THREADS) {
    const int key = item / QUADS, quad = item % QUADS, seen = tile + key;
    const long long column = seen < keep ? seen : seen + skipped;
    const T* from = rows + column * row_step + quad * 4 * step;
    stage[key * PITCH + quad] = seen < end ? attention_quad<T>(from, step, wide) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}
