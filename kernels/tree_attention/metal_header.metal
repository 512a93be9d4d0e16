// The score of a column that is not seen, and below all that are: finite, and so is its distance from any score.
#define ATTENTION_LOWEST (-1e30f)

// Four neighbouring elements of a row as float. The usual step of 1 leaves the compiler free to load them at once.
template <typename T> METAL_FUNC float4 attention_quad(const device T* row, int64_t step) {
  if (step == 1) return float4(float(row[0]), float(row[1]), float(row[2]), float(row[3]));
  return float4(float(row[0]), float(row[step]), float(row[2 * step]), float(row[3 * step]));
}

// Copies one slab of the rows of a tile into threadgroup memory: 32 rows of SLAB elements, as float, PITCH quads apart.
// Neighbouring threads take neighbouring quads of a row. Rows at `end` and behind it become zeros and are not read.
template <typename T, int SLAB, int PITCH, int THREADS>
METAL_FUNC void attention_stage(
    threadgroup float4* stage, const device T* rows, int64_t row_step, int64_t step,
    int tile, int end, int keep, int skipped, uint thread_index) {
  constexpr int QUADS = SLAB / 4;
  for (int item = int(thread_index); item < 32 * QUADS; item += THREADS) {
    const int key = item / QUADS, quad = item % QUADS, seen = tile + key;
    const int64_t column = seen < keep ? seen : seen + skipped;
    stage[key * PITCH + quad] =
        seen < end ? attention_quad<T>(rows + column * row_step + quad * 4 * step, step) : float4(0.0f);
  }
}
