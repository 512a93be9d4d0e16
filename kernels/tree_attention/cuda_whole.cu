// The end of a walk whose span is the whole context: the result, node by node, its heads side by side.
if (share == 0) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + lane / 4 + 8 * r, query_head = head * heads_per_group + min(row, rows - 1) / nodes;
    const float sink =
        SINKS ? static_cast<float>(sinks[query_head * sinks_strides[0]]) * own::LOG2_E : own::LOWEST;
    const float higher = fmaxf(reference[r], sink), fade = own::power(reference[r] - higher);
    const float weight = total[r] * fade + (SINKS ? own::power(sink - higher) : 0.0f);
    if (row < rows) {
      T* const to = out + (row % nodes * queries_shape[1] + query_head) * D + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<uint32_t*>(to + n * 8) =
            own::Element<T>::pair(sums[n][2 * r] * (fade / weight), sums[n][2 * r + 1] * (fade / weight));
      }
    }
  }
}
