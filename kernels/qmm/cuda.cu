// y[m, n] = sum over k of x[m, k] * (q[n, k] * scales[n, k / GROUP] + biases[n, k / GROUP]), for up to ROWS rows m.
//
// Tensor cores multiply 16 rows of q by 8 rows of x. A 4-bit q enters as base + q, exact in T and one operation for two
// weights (8-bit: two such digits); the float32 sum of a group is then scaled, and (bias - base * scale) * sum of x is
// added. So no weight is rounded. K is cut into slices of SPAN groups, one to each warp, which keeps its slice of x in
// registers and lets the block's tiles of 16 * TALL weight rows stream past it, through a ring of STAGES tiles of its own
// in shared memory. The warps' sums are added in a fixed order: over warps, over phases (a block goes over its tiles once
// for each part of K), and over the SPLIT blocks of a team, of which the last to arrive adds what all of them left in
// `parts`. Two runs give the same bits.
//
// Blocks of a team meet in memory and not as a cluster: a CUDA graph that MLX updates does not take a kernel's cluster
// shape over, and gives it to other kernels.
//
// Bytes: w, scales and biases once each: N * K * (BITS / 8 + 4 / GROUP); x once per multiprocessor, divided by SPLIT;
// y once. Operations: 2 * M * N * K.

using E = qmm::Element<T>;
constexpr int columns = ROWS / 8;           // mma columns of 8 rows of x
constexpr int words = GROUP * BITS / 128;   // words that a lane holds of one group of one weight row
constexpr int vectors = GROUP / 32;         // 16-byte vectors that a lane holds of one group of one row of x
constexpr int levels = BITS / 4;            // 4-bit digits of a weight
constexpr float base = BITS == 4 ? E::base : 17.0f * E::base;
constexpr int tile_rows = 16 * TALL;         // weight rows of a tile
constexpr int fragments = TALL * columns * 32;  // float4 accumulators of a warp
constexpr int row_bytes = SPAN * GROUP * BITS / 8, row_pieces = row_bytes / 16;  // of a tile's row
constexpr int weight_bytes = tile_rows * row_bytes, stage_bytes = weight_bytes + 4 * tile_rows * SPAN;  // of a tile

// 16-byte pieces of a row change places so that the lanes of a warp read from all banks.
constexpr int swizzle = words == 1 ? 7 : words == 2 ? 3 : 1, swizzle_shift = words == 2 ? 1 : words == 4 ? 2 : 0;
auto place = [](int row, int piece) { return piece ^ (((row & swizzle) << swizzle_shift) & (row_pieces - 1)); };

const int M = x_shape[x_ndim - 2], K = x_shape[x_ndim - 1], N = w_shape[0];
const int row_words = K * BITS / 32, row_groups = K / GROUP;
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int g = lane / 4, t = lane % 4;

// The team's tiles of weight rows, of which each block of the team has its slices of K.
constexpr int SPLIT = QMM_SPLIT, WARPS = QMM_WARPS;
const int rank = blockIdx.x % SPLIT, team = blockIdx.x / SPLIT, teams = gridDim.x / SPLIT;
const int tiles = (N + tile_rows - 1) / tile_rows;
const int first_tile = static_cast<long long>(tiles) * team / teams;
const int own_tiles = static_cast<int>(static_cast<long long>(tiles) * (team + 1) / teams) - first_tile;

extern __shared__ float4 arena[];
float4* carried = arena;                                                             // [2][warp][tile of a round][fragment]
float4* totals = carried + 2 * WARPS * ROUND * fragments;                            // [tile][fragment], of several phases
float* sums = reinterpret_cast<float*>(totals + (PHASES > 1 ? own_tiles * fragments : 0));  // [warp][SPAN][ROWS]: of x
unsigned char* ring = reinterpret_cast<unsigned char*>(sums + WARPS * SPAN * ROWS) + warp * STAGES * stage_bytes;
sums += warp * SPAN * ROWS;

for (int phase = 0; phase < PHASES; ++phase) {
  const int first_group = ((phase * SPLIT + rank) * WARPS + warp) * SPAN;
  // Not clamped to 0 and SPAN: ptxas takes the predicate of a fused minimum and maximum for `groups == SPAN`, wrongly.
  const int groups = row_groups - first_group;
  const bool whole = SPAN > 1 && groups >= SPAN && row_groups % SPAN == 0 && qmm::aligned<SPAN>(scales) && qmm::aligned<SPAN>(biases);

  // Tiles on their way to this warp. Lanes 0 to 15 have the scales of a row, the others the biases.
  constexpr int rows_at_once = 32 / row_pieces;
  const int copied_row = lane / row_pieces, piece = lane % row_pieces;
  const bool in_row = first_group * (4 * words) + piece * 4 < row_words;
  const uint32_t* next_words = w + static_cast<size_t>(first_tile * tile_rows + copied_row) * row_words + first_group * (4 * words) + piece * 4;
  const T* next_affine = (lane < 16 ? scales : biases) + static_cast<size_t>(first_tile * tile_rows + lane % 16) * row_groups + first_group;
  const uint32_t ring_at = qmm::shared(ring);
  int ahead = 0, ahead_slot = 0;
  auto fetch = [&]() {
    if (ahead < own_tiles) {
      const int left = N - (first_tile + ahead) * tile_rows;
      const uint32_t to = ring_at + ahead_slot * stage_bytes;
      const uint32_t to_affine = to + weight_bytes + lane * SPAN * 2;
      if (whole && left >= tile_rows) {
#pragma unroll
        for (int i = 0; i < tile_rows / rows_at_once; ++i) {
          const int r = i * rows_at_once + copied_row;
          qmm::copy<16>(to + r * row_bytes + place(r, piece) * 16, next_words + i * rows_at_once * row_words);
        }
#pragma unroll
        for (int tall = 0; tall < TALL; ++tall) {
          qmm::copy<(SPAN > 1 ? SPAN * 2 : 4)>(to_affine + tall * SPAN * 64, next_affine + tall * 16 * row_groups);
        }
      } else {
        for (int i = 0; i < tile_rows / rows_at_once; ++i) {
          const int r = i * rows_at_once + copied_row;
          const bool there = in_row && r < left;
          qmm::copy_if(to + r * row_bytes + place(r, piece) * 16, there ? next_words + i * rows_at_once * row_words : w, there);
        }
        for (int i = 0; i < TALL * SPAN; ++i) {
          const int tall = i / SPAN, u = i % SPAN;
          const bool there = u < groups && tall * 16 + lane % 16 < left;
          const unsigned short* from = reinterpret_cast<const unsigned short*>(next_affine + tall * 16 * row_groups);
          qmm::write(to_affine + tall * SPAN * 64 + u * 2, there ? from[u] : 0);
        }
      }
      next_words += tile_rows * row_words;
      next_affine += tile_rows * row_groups;
      ++ahead;
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

  // x in the order in which the lanes multiply it: a lane's weights of a group are GROUP / 4 neighbours in k.
  uint4 xs[SPAN][columns][vectors];
  const bool at_once = groups >= SPAN && qmm::aligned<8>(x);
#pragma unroll
  for (int c = 0; c < columns; ++c) {
    const int m = c * 8 + g;
    const T* from = x + static_cast<size_t>(min(m, M - 1)) * K + min(first_group, row_groups - 1) * GROUP + t * (GROUP / 4);
    if (at_once) {
#pragma unroll
      for (int i = 0; i < SPAN * vectors; ++i) {
        xs[i / vectors][c][i % vectors] = make_uint4(0, 0, 0, 0);
        if (m < M) {
          xs[i / vectors][c][i % vectors] = *reinterpret_cast<const uint4*>(from + i / vectors * GROUP + i % vectors * 8);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < SPAN * vectors; ++i) {
        xs[i / vectors][c][i % vectors] = make_uint4(0, 0, 0, 0);
        if (m < M && i / vectors < groups) {
          xs[i / vectors][c][i % vectors] = qmm::load_eight(from + i / vectors * GROUP + i % vectors * 8);
        }
      }
    }
  }
#pragma unroll
  for (int u = 0; u < SPAN; ++u) {
#pragma unroll
    for (int c = 0; c < columns; ++c) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        const uint4 all = xs[u][c][v];
        uint4& order = xs[u][c][v];
        if constexpr (BITS == 4) {  // (0, 4), (1, 5), (2, 6), (3, 7)
          order.x = __byte_perm(all.x, all.z, 0x5410);
          order.y = __byte_perm(all.x, all.z, 0x7632);
          order.z = __byte_perm(all.y, all.w, 0x5410);
          order.w = __byte_perm(all.y, all.w, 0x7632);
        } else {  // (0, 2), (1, 3), (4, 6), (5, 7)
          order.x = __byte_perm(all.x, all.y, 0x5410);
          order.y = __byte_perm(all.x, all.y, 0x7632);
          order.z = __byte_perm(all.z, all.w, 0x5410);
          order.w = __byte_perm(all.z, all.w, 0x7632);
        }
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int u = 0; u < SPAN; ++u) {
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      const uint32_t ones[4] = {E::ones, E::ones, E::ones, E::ones};
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        E::multiply(sum, ones, xs[u][c][v].x, xs[u][c][v].y);
        E::multiply(sum, ones, xs[u][c][v].z, xs[u][c][v].w);
      }
      if (g == 0) {
        reinterpret_cast<float2*>(sums)[(u * ROWS + c * 8) / 2 + t] = make_float2(sum[0], sum[1]);
      }
    }
  }
  __syncwarp();

  int slot = 0;
  for (int start = 0, half = 0; start < own_tiles; start += ROUND, half ^= 1) {
    float4* own = carried + (half * WARPS + warp) * ROUND * fragments + lane;
    for (int i = 0; i < ROUND && start + i < own_tiles; ++i) {
      qmm::await_copies<STAGES - 2>();
      __syncwarp();
      fetch();
      const unsigned char* stage = ring + slot * stage_bytes;
      if (++slot == STAGES) {
        slot = 0;
      }
      qmm::Halves<SPAN> scale[TALL][2], bias[TALL][2];
      float acc[TALL][columns][4];
#pragma unroll
      for (int tall = 0; tall < TALL; ++tall) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const unsigned short* at =
              reinterpret_cast<const unsigned short*>(stage + weight_bytes) + (tall * 32 + g + 8 * r) * SPAN;
          scale[tall][r].load(at);
          bias[tall][r].load(at + 16 * SPAN);
        }
#pragma unroll
        for (int j = 0; j < columns * 4; ++j) {
          acc[tall][j / 4][j % 4] = 0.0f;
        }
      }
#pragma unroll
      for (int u = 0; u < SPAN; ++u) {
        float2 total_x[columns];
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          total_x[c] = reinterpret_cast<const float2*>(sums)[(u * ROWS + c * 8) / 2 + t];
        }
#pragma unroll
        for (int tall = 0; tall < TALL; ++tall) {
          uint32_t packed[2][words];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int j = 0; j < words; j += 4) {
              const int at = u * 4 * words + t * words + j;
              qmm::read(packed[r], j, stage + (tall * 16 + g + 8 * r) * row_bytes + place(g, at / 4) * 16 + at % 4 * 4);
            }
          }
          float sum[levels][columns][4];
#pragma unroll
          for (int j = 0; j < levels * columns * 4; ++j) {
            sum[j / (columns * 4)][j / 4 % columns][j % 4] = 0.0f;
          }
#pragma unroll
          for (int v = 0; v < vectors; ++v) {
#pragma unroll
            for (int part = 0; part < 2; ++part) {
#pragma unroll
              for (int level = 0; level < levels; ++level) {
                // 4 bits: a word is 8 weights, two products. 8 bits: it is 4 weights of two digits, a product for each.
                const int word = BITS == 4 ? v : 2 * v + part;
                const int low = BITS == 4 ? 2 * part : level, high = BITS == 4 ? 2 * part + 1 : level + 2;
                const uint32_t upper = packed[0][word], lower = packed[1][word];
                const uint32_t a[4] = {E::pair(upper, low), E::pair(lower, low), E::pair(upper, high), E::pair(lower, high)};
#pragma unroll
                for (int c = 0; c < columns; ++c) {
                  const uint4& b = xs[u][c][v];
                  E::multiply(sum[level][c], a, part ? b.z : b.x, part ? b.w : b.y);
                }
              }
            }
          }
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float s = E::lift(scale[tall][r][u]);
            const float offset = fmaf(-base, s, E::lift(bias[tall][r][u]));
#pragma unroll
            for (int c = 0; c < columns; ++c) {
#pragma unroll
              for (int j = 0; j < 2; ++j) {
                float product = sum[0][c][r * 2 + j];
                if constexpr (levels == 2) {
                  product = fmaf(16.0f, sum[levels - 1][c][r * 2 + j], product);
                }
                float& into = acc[tall][c][r * 2 + j];
                into = fmaf(s, product, fmaf(offset, j ? total_x[c].y : total_x[c].x, into));
              }
            }
          }
        }
      }
#pragma unroll
      for (int j = 0; j < TALL * columns; ++j) {
        const float(&from)[4] = acc[j / columns][j % columns];
        own[(i * TALL * columns + j) * 32] = make_float4(from[0], from[1], from[2], from[3]);
      }
    }
    // One barrier a round: what the warps write next is the other half, and that was added before this barrier.
    __syncthreads();
    const float4* from = carried + half * WARPS * ROUND * fragments;
    for (int i = threadIdx.x; i < min(ROUND, own_tiles - start) * fragments; i += WARPS * 32) {
      float4 value = from[i];
#pragma unroll
      for (int other = 1; other < WARPS; ++other) {
        value = qmm::sum(value, from[other * ROUND * fragments + i]);
      }
      const int at = start * fragments + i;
      if (PHASES > 1) {
        if (phase) {
          value = qmm::sum(totals[at], value);
        }
        totals[at] = value;
      }
      if (phase == PHASES - 1) {
#if QMM_SPLIT > 1
        reinterpret_cast<float4*>(parts)[(static_cast<size_t>(rank) * tiles + first_tile) * fragments + at] = value;
#else
        qmm::store<ROWS, TALL>(y, value, first_tile, at, M, N);
#endif
      }
    }
  }
  __syncthreads();
}

#if QMM_SPLIT > 1
// Whoever finds that the others of the team are done adds the slices of K in their order.
__shared__ int last;
__threadfence();
__syncthreads();
if (threadIdx.x == 0) {
  last = atomicAdd(const_cast<uint32_t*>(arrivals) + team, 1u) == SPLIT - 1;
}
__syncthreads();
if (last) {
  __threadfence();
  if (threadIdx.x == 0) {
    const_cast<uint32_t*>(arrivals)[team] = 0;  // as it was found, for the next call that is given these counters
  }
  const float4* from = reinterpret_cast<const float4*>(parts) + static_cast<size_t>(first_tile) * fragments;
  for (int i = threadIdx.x; i < own_tiles * fragments; i += WARPS * 32) {
    float4 value = __ldcg(from + i);
#pragma unroll
    for (int other = 1; other < SPLIT; ++other) {
      value = qmm::sum(value, __ldcg(from + static_cast<size_t>(other) * tiles * fragments + i));
    }
    qmm::store<ROWS, TALL>(y, value, first_tile, i, M, N);
  }
}
#endif
