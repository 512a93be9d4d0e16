// The end of a walk whose span is the whole context: the result, as in metal_whole.metal.
if (busy) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int row = first_row + r, query_head = head * heads_per_group + min(row, rows - 1) / nodes;
    const float sink = SINKS ? static_cast<float>(sinks[query_head * sinks_strides[0]]) * 1.44269504088896340736f
                             : ATTENTION_LOWEST;
    const float peak = fmaxf(highest[r], sink), fade = exp2f(highest[r] - peak);
    const float weight = attention_sum(total[r]) * fade + (SINKS ? exp2f(sink - peak) : 0.0f);
    if (row < rows) {
      const long long at = static_cast<long long>(head) * rows + row;
#pragma unroll
      for (int slab = 0; slab < SLABS; ++slab) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
          const int element = lane + 32 * i;
          if (element < SLAB) {
            out[at * D + slab * SLAB + element] = static_cast<T>(sums[r][slab * OWN + i] * (fade / weight));
          }
        }
      }
    }
  }
}
