// The score of a column that is not seen, and below all that are: finite, and so is its distance from any score.
#define ATTENTION_LOWEST (-1e30f)

template <typename T>
__device__ inline float attention_element(const T* row, long long at) {
  return static_cast<float>(row[at]);
}

__device__ inline float attention_sum(float value) {
  for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

__device__ inline float attention_max(float value) {
  for (int other = 16; other > 0; other /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, other));
  return value;
}

// Copies one slab of the rows of a tile into shared memory: 32 rows of SLAB elements, as float, PITCH elements apart.
// Rows at `end` and behind it become zeros and are not read.
template <typename T, int SLAB, int PITCH, int THREADS>
__device__ inline void attention_stage(
    float* stage, const T* rows, long long row_step, long long step, int tile, int end, int keep, int skipped) {
  for (int item = threadIdx.x; item < 32 * SLAB; item += THREADS) {
    const int key = item / SLAB, element = item % SLAB, seen = tile + key;
    const long long column = seen < keep ? seen : seen + skipped;
    stage[key * PITCH + element] = seen < end ? attention_element(rows, column * row_step + element * step) : 0.0f;
  }
}
