// out = x dequantise(w)^T with 8x8 simdgroup matrices, for the GPUs of M1 to M4.
//
// A threadgroup owns 32 rows of w (columns of out) and every row of x, so nothing of w is read twice. Its 4 simdgroups
// take the groups of a row in turn, and in the end their 4 partial sums are added.
//
// Weights go from device memory to the operand of the product in registers. A product of 8 matrices needs the same 8 k
// on both sides, but in any order: of DEPTH values of k, product `step` takes those at step, step + RUN, ..., so that
// what a lane holds of a matrix comes in all RUN products from RUN neighbours, one load. Which elements a lane holds is
// not documented; each asks a matrix that holds its own indices.
//
// template: T type of x and out; BITS, GROUP of the quantisation; BLOCKS = ceil(rows / 8)
// bytes read: w, scales and biases once; x once by each threadgroup, its last row once for each that the last block
// lacks too, which the caches serve
// flops: 16 * BLOCKS * K * N in the products, 2 * K * N to dequantise
//
// Instructions of a lane for 1024 weights of 4 bits in groups of 64, that is 32 weights of its own: 16 * BLOCKS
// products; 32 each of extract, convert, fma and round, once for all blocks; 4 loads of w, 2 * BLOCKS of x, 1 of scales
// and biases, 8 shuffles. Through a tile in threadgroup memory it would be 32 stores and 16 loads of matrices more, and
// two barriers.
constexpr int SIMDGROUPS = 4, COLUMNS = 32, TILES = COLUMNS / 8;
constexpr int DEPTH = GROUP < 64 ? GROUP : 64, RUN = DEPTH / 8;
constexpr uint MASK = (1u << BITS) - 1u;
constexpr int SUMS = BLOCKS * 8 * COLUMNS;
threadgroup T places[64];
threadgroup float memory[SIMDGROUPS * SUMS];

const int rows = x_shape[x_ndim - 2], K = x_shape[x_ndim - 1], N = w_shape[0], groups = K / GROUP;
const int simdgroup = int(simdgroup_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int first_column = int(threadgroup_position_in_grid.x) * COLUMNS, column = first_column + lane;

if (thread_index_in_threadgroup < 64u) places[thread_index_in_threadgroup] = T(float(thread_index_in_threadgroup));
threadgroup_barrier(mem_flags::mem_threadgroup);
simdgroup_matrix<T, 8, 8> place;
simdgroup_load(place, places, 8);
int down[2], across[2];  // of the two elements of a matrix that this lane holds
#pragma unroll
for (int e = 0; e < 2; ++e) {
    down[e] = int(float(place.thread_elements()[e])) / 8;
    across[e] = int(float(place.thread_elements()[e])) % 8;
}

simdgroup_matrix<float, 8, 8> sums[BLOCKS][TILES];
#pragma unroll
for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
    for (int j = 0; j < TILES; ++j) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

for (int group = simdgroup; group < groups; group += SIMDGROUPS) {
    float scale = 0.0f, bias = 0.0f;
    if (column < N) {
        scale = float(scales[column * groups + group]);
        bias = float(biases[column * groups + group]);
    }
    float scale_of[TILES][2], bias_of[TILES][2];
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            scale_of[j][e] = simd_shuffle(scale, ushort(8 * j + across[e]));
            bias_of[j][e] = simd_shuffle(bias, ushort(8 * j + across[e]));
        }
    }

    for (int k = group * GROUP; k < (group + 1) * GROUP; k += DEPTH) {
        uint2 packed[TILES][2];
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int n = first_column + 8 * j + across[e];
                packed[j][e] = uint2(0u);
                if (n < N) {
                    const device uint* row = w + size_t(n) * size_t(K / 32 * BITS);
                    packed[j][e] = packed_values<RUN, BITS>(row, k + RUN * down[e]);
                }
            }
        }
        metal::vec<T, 4> values[BLOCKS][2];  // of four steps
#pragma unroll
        for (int step = 0; step < RUN; ++step) {
            simdgroup_matrix<T, 8, 8> left[BLOCKS], right;
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    if (step % 4 == 0) {
                        const int row = min(8 * i + down[e], rows - 1);  // what a row beyond gives is not stored
                        values[i][e] = *(const device metal::vec<T, 4>*)(x + row * K + k + RUN * across[e] + step);
                    }
                    left[i].thread_elements()[e] = values[i][e][step % 4];
                }
            }
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const uint word = packed[j][e][BITS * step / 32];
                    const float q = float((word >> uint(BITS * step % 32)) & MASK);
                    right.thread_elements()[e] = T(metal::fma(q, scale_of[j][e], bias_of[j][e]));
                }
#pragma unroll
                for (int i = 0; i < BLOCKS; ++i) simdgroup_multiply_accumulate(sums[i][j], left[i], right, sums[i][j]);
            }
        }
    }
}

threadgroup float* mine = memory + simdgroup * SUMS;
#pragma unroll
for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
    for (int j = 0; j < TILES; ++j) simdgroup_store(sums[i][j], mine + 8 * i * COLUMNS + 8 * j, COLUMNS);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int e = int(thread_index_in_threadgroup); e < rows * COLUMNS; e += SIMDGROUPS * 32) {
    const int row = e / COLUMNS, n = first_column + e % COLUMNS;
    if (n < N) out[row * N + n] = T(memory[e] + memory[SUMS + e] + memory[2 * SUMS + e] + memory[3 * SUMS + e]);
}
