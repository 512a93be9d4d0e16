// Puts the spans of each row together: with M the largest of the spans' references (and of the sink),
// out = sum_s 2^(reference_s - M) partial_s / (sum_s 2^(reference_s - M) total_s + 2^(sink - M)).
// Rows come head by head and are put out node by node, heads side by side.
//
// A block has one row: D / 4 threads of four elements each, as often as they fit, and the spans by turns.
namespace own = tree_attention;
constexpr int QUADS = D / 4, TURNS = ATTENTION_THREADS / QUADS;
__shared__ float4 shares[TURNS * QUADS];
const int lane = threadIdx.x % 32, row = blockIdx.x;
const int splits = problem[0], nodes = problem[1], heads = problem[2];
const float2* const spans = reinterpret_cast<const float2*>(extremes) + static_cast<long long>(row) * splits;
const float sink =
    SINKS ? static_cast<float>(sinks[(row / nodes) * sinks_strides[0]]) * own::LOG2_E : own::LOWEST;

float peak = sink;
for (int part = lane; part < splits; part += 32) peak = fmaxf(peak, spans[part].x);
peak = own::max_of_warp(peak);
float total = 0.0f;
for (int part = lane; part < splits; part += 32) total += own::power(spans[part].x - peak) * spans[part].y;
total = own::sum_of_warp(total);
if (SINKS) total += own::power(sink - peak);

const int quad = threadIdx.x % QUADS, turn = threadIdx.x / QUADS;
if (turn < TURNS) {
  const float4* const from = reinterpret_cast<const float4*>(partial) + static_cast<long long>(row) * splits * QUADS;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
  for (int part = turn; part < splits; part += TURNS) {
    const float weight = own::power(spans[part].x - peak);
    const float4 more = from[part * QUADS + quad];
    sum.x += weight * more.x, sum.y += weight * more.y, sum.z += weight * more.z, sum.w += weight * more.w;
  }
  shares[threadIdx.x] = sum;
}
__syncthreads();
if (turn == 0) {
  float4 sum = shares[quad];
#pragma unroll
  for (int other = 1; other < TURNS; ++other) {
    const float4 more = shares[other * QUADS + quad];
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  uint2* const to = reinterpret_cast<uint2*>(out) + (row % nodes * heads + row / nodes) * QUADS + quad;
  *to = make_uint2(
      own::Element<T>::pair(sum.x / total, sum.y / total), own::Element<T>::pair(sum.z / total, sum.w / total));
}
