// out = x dequantise(w)^T with 8x8 simdgroup matrices, for the GPUs of M1 to M4.
//
// A threadgroup owns 32 rows of w (columns of out) and every row of x, so nothing of w is read twice. Its 4 simdgroups
// take the groups of a row in turn: 32 values deep at a time, each lane dequantises its row of w into a column of the
// simdgroup's tile, and the tile is multiplied into 8-row blocks of float accumulators. In the end the 4 partial sums
// are added. A block of 8 whole rows of x is loaded where it lies; the rows of a last block that is not whole go
// through `rest`.
//
// template: T type of x and out; BITS, GROUP of the quantisation; BLOCKS = ceil(rows / 8); RAGGED = rows % 8 != 0
// bytes read: w, scales and biases once; x once by each threadgroup, which the caches serve
// flops: 16 * BLOCKS * K * N in the products, 2 * K * N to dequantise
constexpr int SIMDGROUPS = 4, COLUMNS = 32, DEPTH = 32;
constexpr int STRIDE = COLUMNS + 8;  // so that the 8 rows of a matrix fall into different banks
constexpr int OPERANDS = (DEPTH + (RAGGED ? 8 : 0)) * STRIDE * int(sizeof(T)) / 4;
constexpr int SUMS = BLOCKS * 8 * COLUMNS;
constexpr int REGION = OPERANDS > SUMS ? OPERANDS : SUMS;
threadgroup float memory[SIMDGROUPS * REGION];

const int rows = x_shape[0], K = x_shape[1], N = w_shape[0], groups = K / GROUP;
const int simdgroup = int(simdgroup_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int first_column = int(threadgroup_position_in_grid.x) * COLUMNS, column = first_column + lane;
const int first_rest = 8 * (BLOCKS - 1);
threadgroup float* mine = memory + simdgroup * REGION;
threadgroup T* tile = (threadgroup T*)mine;
threadgroup T* rest = tile + DEPTH * STRIDE;

if (simdgroup < groups) {  // the others load nothing, and store their sums into the region at once
    if (column >= N) {
        for (int k = 0; k < DEPTH; ++k) tile[k * STRIDE + lane] = T(0.0f);
    }
    if (RAGGED) {
        for (int row = rows - first_rest; row < 8; ++row) rest[row * STRIDE + lane] = T(0.0f);
    }
}

simdgroup_matrix<float, 8, 8> sums[BLOCKS][4];
#pragma unroll
for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

for (int group = simdgroup; group < groups; group += SIMDGROUPS) {
    float scale = 0.0f, bias = 0.0f;
    if (column < N) {
        scale = float(scales[column * groups + group]);
        bias = float(biases[column * groups + group]);
    }
    for (int k = group * GROUP; k < (group + 1) * GROUP; k += DEPTH) {
        if (column < N) {
            const device uint* packed = w + (size_t(column) * size_t(K) + size_t(k)) * BITS / 32;
            dequantise_column<T, BITS>(packed, scale, bias, tile + lane, STRIDE);
        }
        if (RAGGED) {
            for (int row = first_rest; row < rows; ++row) {
                rest[(row - first_rest) * STRIDE + lane] = x[row * K + k + lane];
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
        for (int depth = 0; depth < DEPTH; depth += 8) {
            simdgroup_matrix<T, 8, 8> left, right[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) simdgroup_load(right[j], tile + depth * STRIDE + 8 * j, STRIDE);
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) {
                if (RAGGED && i == BLOCKS - 1) {
                    simdgroup_load(left, rest + depth, STRIDE);
                } else {
                    simdgroup_load(left, x + 8 * i * K + k + depth, K);
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) simdgroup_multiply_accumulate(sums[i][j], left, right[j], sums[i][j]);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

#pragma unroll
for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) simdgroup_store(sums[i][j], mine + 8 * i * COLUMNS + 8 * j, COLUMNS);
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int e = int(thread_index_in_threadgroup); e < rows * COLUMNS; e += SIMDGROUPS * 32) {
    const int row = e / COLUMNS, n = first_column + e % COLUMNS;
    if (n < N) out[row * N + n] = T(memory[e] + memory[REGION + e] + memory[2 * REGION + e] + memory[3 * REGION + e]);
}
