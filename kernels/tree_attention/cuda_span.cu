// The end of a walk over one of several spans: its sums, for cuda_merge.cu.
if (busy) {
  const int splits = gridDim.z;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const float weight = attention_sum(total[r]);
    const int row = first_row + r;
    if (row < rows) {
      const long long at = (static_cast<long long>(head) * rows + row) * splits + part;
      if (lane == 0) {
        extremes[at * 2] = highest[r];
        extremes[at * 2 + 1] = weight;
      }
#pragma unroll
      for (int slab = 0; slab < SLABS; ++slab) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
          const int element = lane + 32 * i;
          if (element < SLAB) partial[at * D + slab * SLAB + element] = sums[r][slab * OWN + i];
        }
      }
    }
  }
}
