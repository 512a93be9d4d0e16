// Attention of the N nodes of a tree over one span of the context, for the query heads of one key/value head: the algorithm
// of metal_walk.metal with warps for simdgroups, its bytes and its flops. Its end is cuda_span.cu or cuda_whole.cu.
//
// The rows of a key/value head are its (query head, node) pairs. A block of 8 warps takes at most 8 * ROWS of them and
// walks its span in tiles of 32 columns: keys to shared memory, lane = column, running softmax of each row, values to
// shared memory, lane = elements of the head.
constexpr int WARPS = 8;
constexpr int SLAB = D > 128 ? 128 : D;
constexpr int SLABS = D / SLAB;
constexpr int PITCH = SLAB / 4 + 1;  // one quad of padding: the lanes' rows begin in different banks
constexpr int OWN = (SLAB + 31) / 32;
__shared__ float4 stage[32 * PITCH];
__shared__ float4 weights[WARPS * ROWS * 8];

const int nodes = problem[0], heads_per_group = problem[1], committed = problem[2], keep = problem[3];
const int reach = problem[4], skipped = problem[5], columns = problem[6], span = problem[7];
const int rows = nodes * heads_per_group;
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int head = blockIdx.y, part = blockIdx.z;
const int first_row = (blockIdx.x * WARPS + warp) * ROWS;
const bool busy = first_row < rows;  // the others only help to copy
const int begin = part * span, end = min(begin + span, columns);
const float unit = scale[0] * 1.44269504088896340736f;  // log2(e)

const T* head_keys = keys + head * keys_strides[1];
const T* head_values = values + head * values_strides[1];
float* own_weights = reinterpret_cast<float*>(weights + warp * ROWS * 8);
const float* elements = reinterpret_cast<const float*>(stage);
const bool wide_queries = attention_wide<T>(queries, queries_strides[1], queries_strides[2], queries_strides[3]);
const bool wide_keys = attention_wide<T>(keys, keys_strides[1], keys_strides[2], keys_strides[3]);
const bool wide_values = attention_wide<T>(values, values_strides[1], values_strides[2], values_strides[3]);

int query[ROWS];
unsigned above[ROWS];
float highest[ROWS], total[ROWS], sums[ROWS][SLABS * OWN];
#pragma unroll
for (int r = 0; r < ROWS; ++r) {
  const int row = min(first_row + r, rows - 1);  // rows beyond the last repeat it and are not written
  const int node = row % nodes;
  query[r] = int((head * heads_per_group + row / nodes) * queries_strides[1] + node * queries_strides[2]);
  above[r] = ancestors[node * ancestors_strides[0]];
  highest[r] = ATTENTION_LOWEST;
  total[r] = 0.0f;
#pragma unroll
  for (int i = 0; i < SLABS * OWN; ++i) sums[r][i] = 0.0f;
}

for (int tile = begin; tile < end; tile += 32) {
  float scores[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) scores[r] = 0.0f;
  for (int slab = 0; slab < SLABS; ++slab) {
    attention_stage<T, SLAB, PITCH, WARPS * 32>(
        stage, head_keys + slab * SLAB * keys_strides[3], keys_strides[2], keys_strides[3], wide_keys, tile, end, keep,
        skipped);
    __syncthreads();
    if (busy) {
#pragma unroll 2
      for (int quad = 0; quad < SLAB / 4; ++quad) {
        const float4 key = stage[lane * PITCH + quad];
        const long long at = (slab * SLAB + quad * 4) * queries_strides[3];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          const float4 own = attention_quad<T>(queries + query[r] + at, queries_strides[3], wide_queries);
          scores[r] += attention_dot(own, key);
        }
      }
    }
    __syncthreads();
  }

  if (busy) {
    const int seen = tile + lane, column = seen < keep ? seen : seen + skipped, branch = column - committed;
    const bool inside = seen < end, in_tree = inside && branch >= 0;
    const unsigned bit = in_tree ? 1u << branch : 0u;
    const int depth = in_tree ? __popc(ancestors[branch * ancestors_strides[0]]) - 1 : 0;
    const int position = in_tree ? committed + depth : column;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int place = committed + __popc(above[r]) - 1;
      const bool near = position < keep || place - position < reach;
      const bool visible = inside && near && (!in_tree || (above[r] & bit) != 0u);
      const float score = visible ? scores[r] * unit : ATTENTION_LOWEST;
      const float peak = fmaxf(highest[r], attention_max(score));
      const float weight = visible ? exp2f(score - peak) : 0.0f, fade = exp2f(highest[r] - peak);
      own_weights[r * 32 + lane] = weight;
      highest[r] = peak;
      total[r] = total[r] * fade + weight;
#pragma unroll
      for (int i = 0; i < SLABS * OWN; ++i) sums[r][i] *= fade;
    }
  }

#pragma unroll
  for (int slab = 0; slab < SLABS; ++slab) {
    attention_stage<T, SLAB, PITCH, WARPS * 32>(
        stage, head_values + slab * SLAB * values_strides[3], values_strides[2], values_strides[3], wide_values, tile,
        end, keep, skipped);
    __syncthreads();  // also orders the weights between lanes
    if (busy) {
      for (int four = 0; four < 8; ++four) {
        float value[4][OWN];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int i = 0; i < OWN; ++i) {
            const int element = lane + 32 * i;
            value[k][i] = element < SLAB ? elements[(four * 4 + k) * PITCH * 4 + element] : 0.0f;
          }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          const float4 weight = weights[(warp * ROWS + r) * 8 + four];
#pragma unroll
          for (int i = 0; i < OWN; ++i) {
            sums[r][slab * OWN + i] += weight.x * value[0][i] + weight.y * value[1][i] + weight.z * value[2][i]
                + weight.w * value[3][i];
          }
        }
      }
    }
    __syncthreads();
  }
}
