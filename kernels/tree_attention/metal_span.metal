// The end of a walk over one of several spans: the span's sums, for metal_merge.metal. Written: float32, rows * splits *
// (D + 2).
if (busy) {
  const int splits = int(threadgroups_per_grid.z);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const float weight = simd_sum(total[r]);
    const int row = first_row + r;
    if (row < rows) {
      const int64_t at = (int64_t(head) * rows + row) * splits + part;
      if (lane == 0) {
        extremes[at * 2] = highest[r];
        extremes[at * 2 + 1] = weight;
      }
#pragma unroll
      for (int slab = 0; slab < SLABS; ++slab) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
          const int element = lane + 32 * i;
          if (SLAB % 32 == 0 || element < SLAB) partial[at * D + slab * SLAB + element] = sums[r][slab * OWN + i];
        }
      }
    }
  }
}
