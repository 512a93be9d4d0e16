// y[m, n] = sum over k of x[m, k] * (q[n, k] * scales[n, k / GROUP] + biases[n, k / GROUP]), for up to ROWS rows m.
//
// Tensor cores multiply 16 rows of q by 8 rows of x. A 4-bit q enters as base + q, exact in T and one operation for two
// weights (8-bit: two such digits); the float32 sum of a group is then scaled, and (bias - base * scale) * sum of x is
// added. So no weight is rounded. K is cut into slices, one to each block of a cluster, whose shared memory keeps x in
// the order of the instruction's operand; the cluster's tiles of rows stream past it. Each warp copies the weights of
// its own steps (one tile by 128 bytes of K) into a ring, several steps ahead, and its sums are added in a fixed order:
// over warps, then over the cluster's blocks. Two runs give the same bits.
//
// Bytes: w, scales and biases once each: N * K * (BITS / 8 + 4 / GROUP); x once per block; y once. Operations: 2 * M *
// N * K. Shared memory carries x once more for each tile: 2 * ROWS * K * N / (16 * TALL) bytes.

using E = qmm::Element<T>;
constexpr int tile_rows = 16 * TALL;           // weight rows of a tile
constexpr int UNIT = 1024 / (GROUP * BITS);    // groups of a step: 128 bytes of each row
constexpr int columns = ROWS / 8;              // mma columns of 8 rows of x
constexpr int words = GROUP * BITS / 128;      // words that a lane holds of one group of one weight row
constexpr int vectors = GROUP / 32;            // 16-byte vectors that a lane holds of one group of one row of x
constexpr int levels = BITS / 4;               // 4-bit digits of a weight
constexpr float base = BITS == 4 ? E::base : 17.0f * E::base;
constexpr int fragments = TALL * columns;      // float4 accumulators of a lane

// 16-byte pieces of a row change places so that the lanes of a warp read from all banks.
constexpr int swizzle = words == 1 ? 7 : words == 2 ? 3 : 1, swizzle_shift = words == 2 ? 1 : words == 4 ? 2 : 0;
constexpr int stage_bytes = tile_rows * 128;

const int M = x_shape[0], K = x_shape[1], N = w_shape[0];
const int row_words = K * BITS / 32, row_groups = K / GROUP;
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int g = lane / 4, t = lane % 4;

// The cluster's tiles of weight rows, and the slices of K: of each SPLIT slices a block of the cluster takes one. Where
// a launch came without its cluster (a CUDA graph may lose it in an update), the first block takes them all.
const int rank = blockIdx.x % SPLIT, cluster = blockIdx.x / SPLIT, clusters = gridDim.x / SPLIT;
const bool clustered = SPLIT == 1 || qmm::cluster_size() == SPLIT;
if (!clustered && rank != 0) {
  return;
}
constexpr int slices = SPLIT * PHASES;
const int steps = (row_groups + UNIT - 1) / UNIT, most = (steps + slices - 1) / slices * UNIT;
const int tiles = (N + tile_rows - 1) / tile_rows, most_tiles = (tiles + clusters - 1) / clusters;
const int first_tile = tiles * cluster / clusters, own_tiles = tiles * (cluster + 1) / clusters - first_tile;

extern __shared__ uint4 arena[];
uint4* xs = arena;                                                             // [group][column][vector][lane]
float* sums = reinterpret_cast<float*>(xs + most * columns * vectors * 32);    // [group][ROWS]: sum of x
float4* partial = reinterpret_cast<float4*>(sums + most * ROWS);               // [tile][fragment][lane]
float4* carried = partial + most_tiles * fragments * 32;                       // [warp][fragment][lane]
unsigned char* rings = reinterpret_cast<unsigned char*>(carried + WARPS * fragments * 32);        // [warp][stage]
unsigned short* affine = reinterpret_cast<unsigned short*>(rings + WARPS * STAGES * stage_bytes);  // [2][row][group]
int* carried_tile = reinterpret_cast<int*>(affine + 2 * most_tiles * tile_rows * most);           // [warp]
unsigned char* ring = rings + warp * STAGES * stage_bytes;

for (int phase = 0; phase < (clustered ? PHASES : slices); ++phase) {
  // Each warp takes a run of (tile, step) of this slice.
  const int part = clustered ? phase * SPLIT + rank : phase;
  const int first_step = steps * part / slices, slice = steps * (part + 1) / slices - first_step;
  const int total = own_tiles * slice;
  const int begin = total * warp / WARPS, end = total * (warp + 1) / WARPS;
  if (phase) {
    __syncthreads();
  }

  // Weights on their way: each warp has a ring of STAGES steps of its own.
  int ahead_tile = begin / slice, ahead_step = begin % slice, ahead = begin, ahead_slot = 0;
  auto fetch = [&]() {
    if (ahead < end) {
      const int step = first_step + ahead_step, top = (first_tile + ahead_tile) * tile_rows;
      unsigned char* to = ring + ahead_slot * stage_bytes;
#pragma unroll
      for (int i = 0; i < tile_rows / 4; ++i) {
        const int r = i * 4 + lane / 8, piece = lane % 8;
        const size_t row = min(top + r, N - 1);
        const int word = step * 32 + piece * 4;
        const bool there = word < row_words;
        qmm::copy_once(to + r * 128 + (piece ^ ((r & swizzle) << swizzle_shift)) * 16,
                       w + row * row_words + (there ? word : 0), there);
      }
      ++ahead;
      if (++ahead_step == slice) {
        ahead_step = 0;
        ++ahead_tile;
      }
      if (++ahead_slot == STAGES) {
        ahead_slot = 0;
      }
    }
    qmm::commit_copies();
  };
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    fetch();
  }

  // All scales and biases that this block needs now; zeros beyond K.
  for (int r = warp * 4 + lane / 8; r < 2 * own_tiles * tile_rows; r += WARPS * 4) {
    const bool second = r >= own_tiles * tile_rows;
    const int own = second ? r - own_tiles * tile_rows : r;
    const size_t row = min(first_tile * tile_rows + own, N - 1);
    const T* from = (second ? biases : scales) + row * row_groups + first_step * UNIT;
    unsigned short* to = affine + ((second ? most_tiles * tile_rows : 0) + own) * most;
    if (UNIT > 1 && row_groups % UNIT == 0) {
      for (int s = lane % 8; s < slice; s += 8) {
        qmm::copy<(UNIT > 1 ? UNIT * 2 : 4)>(to + s * UNIT, from + s * UNIT);
      }
    } else {
      for (int s = lane % 8; s < slice * UNIT; s += 8) {
        to[s] = first_step * UNIT + s < row_groups ? reinterpret_cast<const unsigned short*>(from)[s] : 0;
      }
    }
  }
  qmm::commit_copies();

  // x in the order in which the lanes multiply it: a lane's weights of a group are GROUP / 4 neighbours in k.
  {
    constexpr int per_group = GROUP / 8;
    const int eights = slice * UNIT * per_group;
    const bool aligned = reinterpret_cast<size_t>(x) % 16 == 0;
    for (int i = threadIdx.x; i < ROWS * eights; i += WARPS * 32) {
      const int m = i / eights, eight = i % eights;
      uint4 v = make_uint4(0, 0, 0, 0);
      const int k = first_step * UNIT * GROUP + eight * 8;
      if (m < M && k < K) {
        const T* from = x + static_cast<size_t>(m) * K + k;
        if (aligned) {
          v = *reinterpret_cast<const uint4*>(from);
        } else {
          const unsigned short* one = reinterpret_cast<const unsigned short*>(from);
          v.x = one[0] | one[1] << 16;
          v.y = one[2] | one[3] << 16;
          v.z = one[4] | one[5] << 16;
          v.w = one[6] | one[7] << 16;
        }
      }
      uint4 order;
      if constexpr (BITS == 4) {  // (0, 4), (1, 5), (2, 6), (3, 7)
        order.x = __byte_perm(v.x, v.z, 0x5410);
        order.y = __byte_perm(v.x, v.z, 0x7632);
        order.z = __byte_perm(v.y, v.w, 0x5410);
        order.w = __byte_perm(v.y, v.w, 0x7632);
      } else {  // (0, 2), (1, 3), (4, 6), (5, 7)
        order.x = __byte_perm(v.x, v.y, 0x5410);
        order.y = __byte_perm(v.x, v.y, 0x7632);
        order.z = __byte_perm(v.z, v.w, 0x5410);
        order.w = __byte_perm(v.z, v.w, 0x7632);
      }
      const int group = eight / per_group, place = eight % per_group;
      xs[((group * columns + m / 8) * vectors + place % vectors) * 32 + m % 8 * 4 + place / vectors] = order;
    }
  }
  __syncthreads();
  for (int i = warp; i < slice * UNIT * columns; i += WARPS) {
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const uint32_t ones[4] = {E::ones, E::ones, E::ones, E::ones};
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      const uint4 at = xs[(i * vectors + v) * 32 + lane];
      E::multiply(sum, ones, at.x, at.y);
      E::multiply(sum, ones, at.z, at.w);
    }
    if (g == 0) {
      reinterpret_cast<float2*>(sums)[(i / columns * ROWS + i % columns * 8) / 2 + t] = make_float2(sum[0], sum[1]);
    }
  }
  qmm::await_copies<0>();
  if (lane == 0) {
    carried_tile[warp] = begin < end && begin % slice ? begin / slice : -1;
  }
  __syncthreads();

  float acc[TALL][columns][4];
  auto clear = [&]() {
#pragma unroll
    for (int i = 0; i < fragments * 4; ++i) {
      acc[i / (columns * 4)][i / 4 % columns][i % 4] = 0.0f;
    }
  };
  clear();
  int tile = begin / slice, step = begin % slice, slot = 0;
  bool continued = step != 0;
  for (int at = begin; at < end; ++at) {
    qmm::await_copies<STAGES - 2>();
    __syncwarp();
    fetch();
    const unsigned char* stage = ring + slot * stage_bytes;
    if (++slot == STAGES) {
      slot = 0;
    }
    const unsigned short* at_scale = affine + (tile * tile_rows + g) * most + step * UNIT;
    const unsigned short* at_bias = at_scale + most_tiles * tile_rows * most;
    qmm::Halves<UNIT> scale[TALL * 2], bias[TALL * 2];
#pragma unroll
    for (int r = 0; r < TALL * 2; ++r) {
      scale[r].load(at_scale + 8 * r * most);
      bias[r].load(at_bias + 8 * r * most);
    }
#pragma unroll
    for (int u = 0; u < UNIT; ++u) {
      const int group = step * UNIT + u;
      uint32_t packed[TALL * 2][words];
#pragma unroll
      for (int r = 0; r < TALL * 2; ++r) {
#pragma unroll
        for (int i = 0; i < words; i += 4) {
          const int piece = (u * 4 * words + t * words + i) / 4, inside = (u * 4 * words + t * words + i) % 4;
          const unsigned char* from =
              stage + (g + 8 * r) * 128 + (piece ^ ((g & swizzle) << swizzle_shift)) * 16 + inside * 4;
          if constexpr (words == 1) {
            packed[r][0] = *reinterpret_cast<const uint32_t*>(from);
          } else if constexpr (words == 2) {
            const uint2 all = *reinterpret_cast<const uint2*>(from);
            packed[r][0] = all.x, packed[r][1] = all.y;
          } else {
            const uint4 all = *reinterpret_cast<const uint4*>(from);
            packed[r][i] = all.x, packed[r][i + 1] = all.y, packed[r][i + 2] = all.z, packed[r][i + 3] = all.w;
          }
        }
      }
      float sum[levels][TALL][columns][4];
#pragma unroll
      for (int i = 0; i < levels * fragments * 4; ++i) {
        sum[i / (fragments * 4)][i / (columns * 4) % TALL][i / 4 % columns][i % 4] = 0.0f;
      }
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        uint4 b[columns];
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          b[c] = xs[((group * columns + c) * vectors + v) * 32 + lane];
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int level = 0; level < levels; ++level) {
            // 4 bits: a word is 8 weights, two products. 8 bits: a word is 4 weights of two digits, a product for each.
            const int word = BITS == 4 ? v : 2 * v + half;
            const int low = BITS == 4 ? 2 * half : level, high = BITS == 4 ? 2 * half + 1 : level + 2;
#pragma unroll
            for (int tall = 0; tall < TALL; ++tall) {
              const uint32_t upper = packed[2 * tall][word], lower = packed[2 * tall + 1][word];
              const uint32_t a[4] = {E::pair(upper, low), E::pair(lower, low),
                                     E::pair(upper, high), E::pair(lower, high)};
#pragma unroll
              for (int c = 0; c < columns; ++c) {
                E::multiply(sum[level][tall][c], a, half ? b[c].z : b[c].x, half ? b[c].w : b[c].y);
              }
            }
          }
        }
      }
      float2 total_x[columns];
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        total_x[c] = reinterpret_cast<const float2*>(sums)[(group * ROWS + c * 8) / 2 + t];
      }
#pragma unroll
      for (int r = 0; r < TALL * 2; ++r) {
        const float s = E::lift(scale[r][u]);
        const float offset = fmaf(-base, s, E::lift(bias[r][u]));
#pragma unroll
        for (int c = 0; c < columns; ++c) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float product = sum[0][r / 2][c][r % 2 * 2 + i];
            if constexpr (levels == 2) {
              product = fmaf(16.0f, sum[levels - 1][r / 2][c][r % 2 * 2 + i], product);
            }
            float& into = acc[r / 2][c][r % 2 * 2 + i];
            into = fmaf(s, product, fmaf(offset, i ? total_x[c].y : total_x[c].x, into));
          }
        }
      }
    }
    if (++step == slice || at + 1 == end) {
      float4* to = (continued ? carried + warp * fragments * 32 : partial + tile * fragments * 32) + lane;
#pragma unroll
      for (int f = 0; f < fragments; ++f) {
        const float(&from)[4] = acc[f / columns][f % columns];
        const float4 value = make_float4(from[0], from[1], from[2], from[3]);
        to[f * 32] = phase && !continued ? qmm::sum(to[f * 32], value) : value;
      }
      clear();
      continued = false;
      step = 0;
      ++tile;
    }
  }
  __syncthreads();

  // Runs that go on with another warp's tile, in the order of the warps: always the same sum.
  int goes_on[WARPS];
#pragma unroll
  for (int other = 1; other < WARPS; ++other) {
    goes_on[other] = carried_tile[other];
  }
  for (int i = threadIdx.x; i < own_tiles * fragments * 32; i += WARPS * 32) {
    float4 value = partial[i];
#pragma unroll
    for (int other = 1; other < WARPS; ++other) {
      if (goes_on[other] == i / (fragments * 32)) {
        value = qmm::sum(value, carried[other * fragments * 32 + i % (fragments * 32)]);
      }
    }
    partial[i] = value;
  }

}

// The slices of K in their order, over the cluster.
const bool gather = SPLIT > 1 && clustered;
if (gather) {
  qmm::cluster_barrier();
} else {
  __syncthreads();
}
const int sharers = gather ? SPLIT : 1, place = gather ? rank : 0;
for (int i = place * WARPS * 32 + threadIdx.x; i < own_tiles * fragments * 32; i += sharers * WARPS * 32) {
  float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (gather) {
#pragma unroll
    for (int other = 0; other < SPLIT; ++other) {
      value = qmm::sum(value, qmm::distant(partial + i, other));
    }
  } else {
    value = partial[i];
  }
  const int fragment = i / 32 % fragments;
  const int row = (first_tile + i / (fragments * 32)) * tile_rows + fragment / columns * 16 + i % 32 / 4;
  const int m = fragment % columns * 8 + i % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r < N) {
      if (m < M) {
        y[static_cast<size_t>(m) * N + row + 8 * r] = E::round(r ? value.z : value.x);
      }
      if (m + 1 < M) {
        y[static_cast<size_t>(m + 1) * N + row + 8 * r] = E::round(r ? value.w : value.y);
      }
    }
  }
}
if (gather) {
  qmm::cluster_barrier();  // the others may still read here
}
