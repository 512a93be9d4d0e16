// Attention of the N nodes of a tree over one span of the context, for the query heads of one key/value head, on tensor
// cores (sm_80 and later). Its end is cuda_span.cu or cuda_whole.cu.
//
// The rows of a key/value head are its (query head, node) pairs. A block takes TILES * 16 of them and walks its span in
// stages of 64 columns; of a stage, each tile of 16 rows has PARTS warps with 64 / PARTS columns each, which put their
// sums together in the end. Keys and values come through shared memory, a stage ahead. Scores, softmax and sums are
// float32; the weights are rounded to T where they are an operand of the product with the values, but not in their sum.
namespace own = tree_attention;
constexpr int THREADS = TILES * PARTS * 32;
constexpr int STAGE = 64, STEP = STAGE / PARTS;
constexpr int PITCH = D + 8;  // eight rows that are loaded at once lie in different banks
extern __shared__ float4 arena[];
T* const stages = reinterpret_cast<T*>(arena);  // keys, values, keys, values
T* const own_queries = stages + 4 * STAGE * PITCH;
unsigned* const tree = reinterpret_cast<unsigned*>(own_queries + TILES * 16 * PITCH);  // the ancestors

const int nodes = problem[0], heads_per_group = problem[1], committed = problem[2], keep = problem[3];
const int reach = problem[4], skipped = problem[5], columns = problem[6], span = problem[7];
const int rows = nodes * heads_per_group;
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_tile = warp % TILES, share = warp / TILES;
const int head = blockIdx.y, part = blockIdx.z;
const int block_row = blockIdx.x * TILES * 16, first_row = block_row + row_tile * 16;
const int begin = part * span, end = min(begin + span, columns);
const float unit = scale[0] * own::LOG2_E;

const own::Columns<T> all_keys = {
    keys + head * keys_strides[1], keys_strides[2], keys_strides[3],
    own::are_wide<T>(keys, keys_strides[1], keys_strides[2], keys_strides[3]), end, keep, skipped};
const own::Columns<T> all_values = {
    values + head * values_strides[1], values_strides[2], values_strides[3],
    own::are_wide<T>(values, values_strides[1], values_strides[2], values_strides[3]), end, keep, skipped};
const uint32_t first_stage = own::shared_address(stages);
const auto copy_keys = [&](int stage) {
  const int first = begin + stage * STAGE, place = stage % 2 * 2 * STAGE * PITCH;
  if (first < end) {
    all_keys.template copy<STAGE, D, PITCH, THREADS>(stages + place, first_stage + place * sizeof(T), first);
  }
};
const auto copy_values = [&](int stage) {
  const int first = begin + stage * STAGE, place = (stage % 2 * 2 + 1) * STAGE * PITCH;
  if (first < end) {
    all_values.template copy<STAGE, D, PITCH, THREADS>(stages + place, first_stage + place * sizeof(T), first);
  }
};

own::copy_queries<T, TILES * 16, D, PITCH, THREADS>(
    own_queries, queries + head * heads_per_group * queries_strides[1], queries_strides[1], queries_strides[2],
    queries_strides[3], block_row, rows, nodes);
copy_keys(0);
own::end_group();
copy_values(0);
own::end_group();
copy_keys(1);
copy_values(1);
own::end_group();
if (threadIdx.x < nodes) tree[threadIdx.x] = ancestors[threadIdx.x * ancestors_strides[0]];

// Of each product a lane has two rows, 8 apart, and of 8 columns two neighbours.
unsigned above[2];
int place[2];
float reference[2], total[2], sums[D / 8][4];
#pragma unroll
for (int r = 0; r < 2; ++r) {
  const int row = min(first_row + lane / 4 + 8 * r, rows - 1);
  above[r] = ancestors[row % nodes * ancestors_strides[0]];
  place[r] = committed + __popc(above[r]) - 1;
  reference[r] = own::LOWEST;
  total[r] = 0.0f;
}
#pragma unroll
for (int n = 0; n < D / 8; ++n) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[n][i] = 0.0f;
}

// Where the lane's row of four matrices lies: of the queries, of the keys of a stage, of its values.
const uint32_t query_row =
    first_stage + (4 * STAGE * PITCH + (row_tile * 16 + lane % 16) * PITCH + lane / 16 * 8) * sizeof(T);
const uint32_t key_row =
    first_stage + ((share * STEP + lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8) * sizeof(T);
const uint32_t value_row = first_stage + ((STAGE + share * STEP + lane % 16) * PITCH + lane / 16 * 8) * sizeof(T);

for (int stage = 0; begin + stage * STAGE < end; ++stage) {
  const int first = begin + stage * STAGE + share * STEP;
  const bool busy = first_row < rows && first < end;
  const uint32_t slot = stage % 2 * 2 * STAGE * PITCH * sizeof(T);
  uint32_t weights[STEP / 16][4];

  own::await_all_but_two_groups();
  __syncthreads();  // the keys are there, and the values before these are done with
  if (stage > 0) copy_values(stage + 1);
  own::end_group();
  if (busy) {
    float scores[STEP / 8][4];
#pragma unroll
    for (int n = 0; n < STEP / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t query[4];
      own::load_matrices(query, query_row + k * 16 * sizeof(T));
#pragma unroll
      for (int n = 0; n < STEP / 16; ++n) {
        uint32_t key[4];
        own::load_matrices(key, key_row + slot + (n * 16 * PITCH + k * 16) * sizeof(T));
        own::Element<T>::multiply(scores[2 * n], query, key[0], key[1]);
        own::Element<T>::multiply(scores[2 * n + 1], query, key[2], key[3]);
      }
    }

    // All rows see all of these columns if they lie before the tree and within the reach of its last possible node.
    const int last = first + STEP - 1, last_column = last < keep ? last : last + skipped;
    const int first_column = first < keep ? first : first + skipped;
    const bool all = last < end && last_column < committed && committed + nodes - 1 - first_column < reach;
#pragma unroll
    for (int n = 0; n < STEP / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (all) {
          scores[n][i] *= unit;
          scores[n][i + 2] *= unit;
        } else {
          const int seen = first + n * 8 + lane % 4 * 2 + i, column = seen < keep ? seen : seen + skipped;
          const int branch = column - committed;
          const bool inside = seen < end, in_tree = inside && branch >= 0;
          const unsigned bit = in_tree ? 1u << branch : 0u;
          const int position = in_tree ? committed + __popc(tree[branch]) - 1 : column;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const bool near = position < keep || place[r] - position < reach;
            const bool visible = inside && near && (!in_tree || (above[r] & bit) != 0u);
            scores[n][i + 2 * r] = visible ? scores[n][i + 2 * r] * unit : own::UNSEEN;
          }
        }
      }
    }

    float fade[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = own::UNSEEN;
#pragma unroll
      for (int n = 0; n < STEP / 8; ++n) highest = fmaxf(highest, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      const float higher = fmaxf(reference[r], own::max_of_four(highest) - own::HEADROOM);
      fade[r] = own::power(reference[r] - higher);
      reference[r] = higher;
      total[r] *= fade[r];
#pragma unroll
      for (int n = 0; n < STEP / 8; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          scores[n][i] = own::power(scores[n][i] - higher);
          total[r] += scores[n][i];
        }
      }
    }
    if (__any_sync(0xffffffffu, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[n][i] *= fade[i / 2];
      }
    }
#pragma unroll
    for (int k = 0; k < STEP / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&pair)[4] = scores[2 * k + i / 2];
        weights[k][i] = own::Element<T>::pair(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
      }
    }
  }

  own::await_all_but_two_groups();
  __syncthreads();  // the values are there, and the keys are done with
  copy_keys(stage + 2);
  own::end_group();
  if (busy) {
#pragma unroll
    for (int k = 0; k < STEP / 16; ++k) {
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        uint32_t value[4];
        own::load_transposed(value, value_row + slot + (k * 16 * PITCH + n * 16) * sizeof(T));
        own::Element<T>::multiply(sums[2 * n], weights[k], value[0], value[1]);
        own::Element<T>::multiply(sums[2 * n + 1], weights[k], value[2], value[3]);
      }
    }
  }
}

#pragma unroll
for (int r = 0; r < 2; ++r) total[r] = own::sum_of_four(total[r]);
if (PARTS > 1) {
  constexpr int QUADS = D / 8 + 1;  // of a lane
  __syncthreads();                  // the stages are done with
  if (share > 0) {
    float4* const to = arena + ((share - 1) * TILES + row_tile) * QUADS * 32 + lane;
    to[0] = make_float4(reference[0], total[0], reference[1], total[1]);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      to[(n + 1) * 32] = make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
    }
  }
  __syncthreads();
  if (share == 0) {
#pragma unroll 1
    for (int other = 0; other < PARTS - 1; ++other) {
      const float4* const from = arena + (other * TILES + row_tile) * QUADS * 32 + lane;
      const float4 theirs = from[0];
      const float higher[2] = {fmaxf(reference[0], theirs.x), fmaxf(reference[1], theirs.z)};
      const float fade[2] = {own::power(reference[0] - higher[0]), own::power(reference[1] - higher[1])};
      const float joined[2] = {own::power(theirs.x - higher[0]), own::power(theirs.z - higher[1])};
      total[0] = total[0] * fade[0] + theirs.y * joined[0];
      total[1] = total[1] * fade[1] + theirs.w * joined[1];
      reference[0] = higher[0], reference[1] = higher[1];
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float4 more = from[(n + 1) * 32];
        sums[n][0] = sums[n][0] * fade[0] + more.x * joined[0];
        sums[n][1] = sums[n][1] * fade[0] + more.y * joined[0];
        sums[n][2] = sums[n][2] * fade[1] + more.z * joined[1];
        sums[n][3] = sums[n][3] * fade[1] + more.w * joined[1];
      }
    }
  }
}
