// Attention of the N nodes of a tree over one span of the context, for the query heads of one key/value head. This is the
// walk over the span; metal_span.metal or, where one span is the whole context, metal_whole.metal is its end.
//
// The rows of a key/value head are its (query head, node) pairs. A threadgroup of 8 simdgroups takes a block of at most
// 8 * ROWS rows, simdgroup s the rows s * ROWS and following, and walks its span in tiles of 32 columns:
//   1. keys of the tile to threadgroup memory; lane = column: each lane has the whole product of a row with its column
//   2. running softmax of each row: simd_max over the lanes, weights 2^(score - highest) to threadgroup memory
//   3. values of the tile to the same threadgroup memory; lane = elements of the head: weighted sum of 32 columns
// Head sizes above 128 go through threadgroup memory in slabs of 128 elements. Loops over registers are unrolled: an array
// with an index that is no constant lies in memory.
//
// Bytes: each threadgroup reads the keys and values of its span once, so a byte of the cache is asked for once by each
// block, ceil(rows / (8 * ROWS)) times. Columns that no node sees (`skipped`) are not read. Flops: 4 * rows * columns * D,
// and for every row and column one exponential.
//
// Blocks do not share a reading: the arithmetic of a full block takes as long. 96 rows of 256 16-bit elements over 8192
// columns, four key/value heads of them, are three readings, 201 us on an M4 Max, against 200 us for the flops (M5: 719 and
// 800, M3 Ultra: 134 and 113; peaks as in the project's roofline), and as the blocks of a span run next to each other,
// caches serve some of it. Sharing would take the sums of more rows in registers, of which a lane has 32 now, or more
// simdgroups than every GPU grants so large a kernel.
//
// Visible of node i at position p: a column whose position is below `keep` or above p - reach; of the columns behind
// `committed`, the tree's own, only those whose bit is set in ancestors[i]. Depth is the number of ancestors. No infinity
// goes into an exponential: fast mathematics may take it that there are none.
constexpr int SIMDGROUPS = 8;
constexpr int SLAB = D > 128 ? 128 : D;
constexpr int SLABS = D / SLAB;
constexpr int PITCH = SLAB / 4 + 1;  // one quad of padding: the lanes' rows begin in different banks
constexpr int OWN = (SLAB + 31) / 32;
threadgroup float4 stage[32 * PITCH];
threadgroup float4 weights[SIMDGROUPS * ROWS * 8];

const int nodes = problem[0], heads_per_group = problem[1], committed = problem[2], keep = problem[3];
const int reach = problem[4], skipped = problem[5], columns = problem[6], span = problem[7];
const int rows = nodes * heads_per_group;
const int lane = int(thread_index_in_simdgroup), simdgroup = int(simdgroup_index_in_threadgroup);
const int head = int(threadgroup_position_in_grid.y), part = int(threadgroup_position_in_grid.z);
const int first_row = (int(threadgroup_position_in_grid.x) * SIMDGROUPS + simdgroup) * ROWS;
const bool busy = first_row < rows;  // the others only help to copy
const int begin = part * span, end = min(begin + span, columns);
const float unit = scale * M_LOG2E_F;

const device T* head_keys = keys + head * keys_strides[1];
const device T* head_values = values + head * values_strides[1];
threadgroup float* own_weights = (threadgroup float*)(weights + simdgroup * ROWS * 8);
const threadgroup float* elements = (const threadgroup float*)stage;

int query[ROWS];
uint above[ROWS];
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
    attention_stage<T, SLAB, PITCH, SIMDGROUPS * 32>(
        stage, head_keys + slab * SLAB * keys_strides[3], keys_strides[2], keys_strides[3], tile, end, keep, skipped,
        thread_index_in_threadgroup);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (busy) {
      for (int quad = 0; quad < SLAB / 4; ++quad) {
        const float4 key = stage[lane * PITCH + quad];
        const int64_t element = (slab * SLAB + quad * 4) * queries_strides[3];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          scores[r] += dot(attention_quad<T>(queries + query[r] + element, queries_strides[3]), key);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  if (busy) {
    const int seen = tile + lane, column = seen < keep ? seen : seen + skipped, branch = column - committed;
    const bool inside = seen < end, in_tree = inside && branch >= 0;
    const uint bit = in_tree ? 1u << branch : 0u;
    const int depth = in_tree ? int(popcount(ancestors[branch * ancestors_strides[0]])) - 1 : 0;
    const int position = in_tree ? committed + depth : column;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int place = committed + int(popcount(above[r])) - 1;
      const bool near = position < keep || place - position < reach;
      const bool visible = inside && near && (!in_tree || (above[r] & bit) != 0u);
      const float score = visible ? scores[r] * unit : ATTENTION_LOWEST;
      const float peak = max(highest[r], simd_max(score));
      const float weight = visible ? fast::exp2(score - peak) : 0.0f, fade = fast::exp2(highest[r] - peak);
      own_weights[r * 32 + lane] = weight;
      highest[r] = peak;
      total[r] = total[r] * fade + weight;
#pragma unroll
      for (int i = 0; i < SLABS * OWN; ++i) sums[r][i] *= fade;
    }
  }

#pragma unroll
  for (int slab = 0; slab < SLABS; ++slab) {
    attention_stage<T, SLAB, PITCH, SIMDGROUPS * 32>(
        stage, head_values + slab * SLAB * values_strides[3], values_strides[2], values_strides[3], tile, end, keep,
        skipped, thread_index_in_threadgroup);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // also orders the weights between lanes
    if (busy) {
      for (int four = 0; four < 8; ++four) {
        float value[4][OWN];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int i = 0; i < OWN; ++i) {
            const int element = lane + 32 * i;
            const bool owned = SLAB % 32 == 0 || element < SLAB;
            value[k][i] = owned ? elements[(four * 4 + k) * PITCH * 4 + element] : 0.0f;
          }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          const float4 weight = weights[(simdgroup * ROWS + r) * 8 + four];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
#pragma unroll
            for (int i = 0; i < OWN; ++i) sums[r][slab * OWN + i] += weight[k] * value[k][i];
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
