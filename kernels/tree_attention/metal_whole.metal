// The end of a walk whose span is the whole context: the result itself, node by node, its heads side by side; there is
// no second launch. A sink is one more column, which has a score and no value.
if (busy) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int row = first_row + r, query_head = head * heads_per_group + min(row, rows - 1) / nodes;
    const float sink = SINKS ? float(sinks[query_head * sinks_strides[0]]) * M_LOG2E_F : ATTENTION_LOWEST;
    const float peak = max(highest[r], sink), fade = fast::exp2(highest[r] - peak);
    const float weight = simd_sum(total[r]) * fade + (SINKS ? fast::exp2(sink - peak) : 0.0f);
    if (row < rows) {
      const int at = row % nodes * queries_shape[1] + query_head;
#pragma unroll
      for (int slab = 0; slab < SLABS; ++slab) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
          const int element = lane + 32 * i;
          if (SLAB % 32 == 0 || element < SLAB) {
            out[at * D + slab * SLAB + element] = T(sums[r][slab * OWN + i] * (fade / weight));
          }
        }
      }
    }
  }
}
