// Puts the spans of each row together: with M the largest of the spans' highest scores (and of the sink),
// out = sum_s 2^(highest_s - M) partial_s / (sum_s 2^(highest_s - M) total_s + 2^(sink - M)).
// Rows come head by head and are put out node by node, heads side by side.
//
// One simdgroup a row, lane = elements of the head. Bytes: every partial sum once; flops: 2 * splits * D a row.
constexpr int OWN = (D + 31) / 32;
const int lane = int(thread_index_in_simdgroup), row = int(threadgroup_position_in_grid.x);
const int splits = problem[0], nodes = problem[1], heads = problem[2];
const float sink = SINKS ? float(sinks[(row / nodes) * sinks_strides[0]]) * M_LOG2E_F : ATTENTION_LOWEST;

float peak = sink;
for (int part = lane; part < splits; part += 32) peak = max(peak, extremes[(int64_t(row) * splits + part) * 2]);
peak = simd_max(peak);

float total = 0.0f;
for (int part = lane; part < splits; part += 32) {
  const int64_t at = (int64_t(row) * splits + part) * 2;
  total += fast::exp2(extremes[at] - peak) * extremes[at + 1];
}
total = simd_sum(total);
if (SINKS) total += fast::exp2(sink - peak);

float sums[OWN];
#pragma unroll
for (int i = 0; i < OWN; ++i) sums[i] = 0.0f;
for (int part = 0; part < splits; ++part) {
  const int64_t at = int64_t(row) * splits + part;
  const float share = fast::exp2(extremes[at * 2] - peak) / total;
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const int element = lane + 32 * i;
    if (D % 32 == 0 || element < D) sums[i] += share * partial[at * D + element];
  }
}
#pragma unroll
for (int i = 0; i < OWN; ++i) {
  const int element = lane + 32 * i;
  if (D % 32 == 0 || element < D) out[(row % nodes * heads + row / nodes) * D + element] = T(sums[i]);
}
