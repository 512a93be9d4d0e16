// The end of a walk over one of several spans: its sums, for cuda_merge.cu.
if (share == 0) {
  const int splits = gridDim.z;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + lane / 4 + 8 * r;
    if (row < rows) {
      const long long at = (static_cast<long long>(head) * rows + row) * splits + part;
      if (lane % 4 == 0) *reinterpret_cast<float2*>(extremes + at * 2) = make_float2(reference[r], total[r]);
      float* const to = partial + at * D + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<float2*>(to + n * 8) = make_float2(sums[n][2 * r], sums[n][2 * r + 1]);
      }
    }
  }
}
