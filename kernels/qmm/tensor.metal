// out = x dequantise(w)^T with tensor operations, for the GPUs of M5 and later.
//
// A threadgroup owns 32 rows of w (columns of out) and every row of x, so nothing of w is read twice. Its 4 simdgroups
// take the groups of a row in turn: 32 values deep at a time, each lane dequantises its row of w into a column of the
// simdgroup's tile, and matmul2d multiplies x, where it lies, by the tile. In the end the 4 partial sums are added.
// matmul2d checks the edge of x: rows beyond its extent count as zeros. Sums leave through store, in any layout.
//
// template: T type of x and out; BITS, GROUP of the quantisation; ROWS = 16 or 32, at least the rows of x
// bytes read: w, scales and biases once; x once by each threadgroup, which the caches serve
// flops: 2 * ROWS * K * N in the products, 2 * K * N to dequantise
constexpr int SIMDGROUPS = 4, COLUMNS = 32, DEPTH = 32;
constexpr int OPERAND = DEPTH * COLUMNS * int(sizeof(T)) / 4;
constexpr int SUMS = ROWS * COLUMNS;
constexpr int REGION = OPERAND > SUMS ? OPERAND : SUMS;
threadgroup float memory[SIMDGROUPS * REGION];

const int rows = x_shape[x_ndim - 2], K = x_shape[x_ndim - 1], N = w_shape[0], groups = K / GROUP;
const int simdgroup = int(simdgroup_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
const int first_column = int(threadgroup_position_in_grid.x) * COLUMNS, column = first_column + lane;
threadgroup float* mine = memory + simdgroup * REGION;
threadgroup T* tile = (threadgroup T*)mine;

if (column >= N && simdgroup < groups) {  // simdgroups without a group store their sums into the region at once
    for (int k = 0; k < DEPTH; ++k) tile[k * COLUMNS + lane] = T(0.0f);
}

// Extents and indices of tensors go from the inner to the outer dimension: columns, rows. matmul2d compares element
// types without their address space but with their const, so x is cast to what is only read all the same.
typedef metal::dextents<int, 2> Extents;
typedef metal::tensor<device T, Extents, metal::tensor_inline> Left;
typedef metal::tensor<threadgroup T, Extents, metal::tensor_inline> Right;
typedef metal::tensor<threadgroup float, Extents, metal::tensor_inline> Sums;
constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
    ROWS, COLUMNS, DEPTH, false, false, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
mpp::tensor_ops::matmul2d<descriptor, metal::execution_simdgroup> multiply;
Right right(tile, Extents(COLUMNS, DEPTH));
auto sums = multiply.template get_destination_cooperative_tensor<Left, Right, float>();
#pragma unroll
for (ushort i = 0; i < sums.get_capacity(); ++i) {
    if (sums.is_valid_element(i)) sums[i] = 0.0f;
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
            dequantise_column<T, BITS>(packed, scale, bias, tile + lane, COLUMNS);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        Left left((device T*)x + k, Extents(DEPTH, rows), metal::array<int, 2>{1, K});
        multiply.run(left, right, sums);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

Sums partial(mine, Extents(COLUMNS, ROWS));
sums.store(partial);
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int e = int(thread_index_in_threadgroup); e < rows * COLUMNS; e += SIMDGROUPS * 32) {
    const int row = e / COLUMNS, n = first_column + e % COLUMNS;
    if (n < N) out[row * N + n] = T(memory[e] + memory[REGION + e] + memory[2 * REGION + e] + memory[3 * REGION + e]);
}
