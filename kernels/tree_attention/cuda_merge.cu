// Puts the spans of each row together: with M the largest of the spans' highest scores (and of the sink),
// out = sum_s 2^(highest_s - M) partial_s / (sum_s 2^(highest_s - M) total_s + 2^(sink - M)). One warp a row.
const int lane = threadIdx.x, row = blockIdx.x;
const int splits = problem[0], nodes = problem[1];
const long long first = static_cast<long long>(row) * splits;
const float sink = SINKS ? static_cast<float>(sinks[(row / nodes) * sinks_strides[0]]) * 1.44269504088896340736f
                         : ATTENTION_LOWEST;

float peak = sink;
for (int part = lane; part < splits; part += 32) peak = fmaxf(peak, extremes[(first + part) * 2]);
peak = attention_max(peak);

float total = 0.0f;
for (int part = lane; part < splits; part += 32) {
  total += exp2f(extremes[(first + part) * 2] - peak) * extremes[(first + part) * 2 + 1];
}
total = attention_sum(total);
if (SINKS) total += exp2f(sink - peak);

for (int element = lane; element < D; element += 32) {
  float sum = 0.0f;
  for (int part = 0; part < splits; ++part) {
    sum += exp2f(extremes[(first + part) * 2] - peak) * partial[(first + part) * D + element];
  }
  out[static_cast<long long>(row) * D + element] = static_cast<T>(sum / total);
}
