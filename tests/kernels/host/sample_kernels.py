"""Kernels of the kinds that the host is for, small, with what they compute in numpy."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from host_runs import as_float64, run
from numpy.typing import NDArray

from kernels.host import Report, RunOptions

RANDOM = np.random.default_rng(3)


@dataclass(frozen=True)
class Sample:
    """A kernel with one call of it."""

    source: str
    inputs: dict[str, Any]
    outputs: dict[str, tuple[tuple[int, ...], mx.Dtype]]
    call: dict[str, Any]
    expected: list[NDArray[np.float64]]
    header: str = ""

    def run(self, options: RunOptions, source: str | None = None) -> tuple[list[mx.array], Report]:
        return run(source or self.source, self.inputs, self.outputs, options=options, header=self.header, **self.call)


def _counting_sort() -> Sample:
    """Positions of 8-bit keys in sorted order: histogram, prefix sum, rank by counting; two rows."""
    source = """
        threadgroup atomic_uint counts[256];
        threadgroup uint starts[256], sums[8];
        threadgroup uchar keys[N];
        const uint row = threadgroup_position_in_grid.x, i = thread_position_in_threadgroup.x;
        atomic_store_explicit(&counts[i], 0u, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint j = i; j < uint(N); j += 256) {
            keys[j] = x[row * uint(N) + j];
            atomic_fetch_add_explicit(&counts[keys[j]], 1u, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint count = atomic_load_explicit(&counts[i], memory_order_relaxed);
        const uint before = simd_prefix_exclusive_sum(count);
        if (thread_index_in_simdgroup == 31) sums[simdgroup_index_in_threadgroup] = before + count;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint start = before;
        for (uint s = 0; s < simdgroup_index_in_threadgroup; ++s) start += sums[s];
        starts[i] = start;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint j = i; j < uint(N); j += 256) {
            uint rank = starts[keys[j]];
            for (uint k = 0; k < j; ++k) rank += keys[k] == keys[j] ? 1u : 0u;
            order[row * uint(N) + rank] = j;
        }
    """
    x = RANDOM.integers(0, 256, (2, 160)).astype(np.uint8)
    return Sample(
        source,
        {"x": x},
        {"order": ((2, 160), mx.uint32)},
        {"grid": (512, 1, 1), "threadgroup": (256, 1, 1), "template": [("N", 160)]},
        [np.argsort(x, axis=1, kind="stable").astype(np.float64)],
    )


def _tiled_product() -> Sample:
    """x w, with w staged through threadgroup memory and two simdgroups that share k; simdgroup matrices."""
    source = """
        threadgroup T tile[2][8 * 8];
        threadgroup float partial[8 * 8];
        const uint group = simdgroup_index_in_threadgroup, lane = thread_index_in_simdgroup;
        const uint column = threadgroup_position_in_grid.x * 8;
        simdgroup_matrix<T, 8, 8> a, b;
        simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        for (int k = int(group) * (K / 2); k < int(group + 1) * (K / 2); k += 8) {
            for (uint e = lane; e < 64; e += 32) tile[group][e] = w[(k + int(e / 8)) * N + int(column + e % 8)];
            simdgroup_barrier(mem_flags::mem_threadgroup);
            simdgroup_load(a, x + k, K);
            simdgroup_load(b, tile[group], 8);
            simdgroup_multiply_accumulate(sum, a, b, sum);
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
        if (group == 0) simdgroup_store(sum, partial, 8);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (group == 1) {
            simdgroup_matrix<float, 8, 8> other;
            simdgroup_load(other, partial, 8);
            sum.thread_elements() += other.thread_elements();
            simdgroup_store(sum, partial, 8);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint e = thread_index_in_threadgroup;
        out[int(e / 8) * N + int(column + e % 8)] = T(partial[e]);
    """
    x = mx.array(RANDOM.standard_normal((8, 32)).astype(np.float32)).astype(mx.bfloat16)
    w = mx.array(RANDOM.standard_normal((32, 24)).astype(np.float32)).astype(mx.bfloat16)
    product = as_float64(x) @ as_float64(w)
    return Sample(
        source,
        {"x": x, "w": w},
        {"out": ((8, 24), mx.bfloat16)},
        {
            "grid": (3 * 64, 1, 1),
            "threadgroup": (64, 1, 1),
            "template": [("T", mx.bfloat16), ("K", 32), ("N", 24)],
        },
        [product],
    )


def _tensor_product() -> Sample:
    """x w^T by matmul2d, written to the documented tensor API; sums leave through their own indices."""
    source = """
        using namespace mpp::tensor_ops;
        threadgroup T tile[32 * 16];
        const uint lane = thread_index_in_simdgroup;
        const int column = int(threadgroup_position_in_grid.x) * 32;
        constexpr auto descriptor =
            matmul2d_descriptor(16, 32, 16, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
        matmul2d<descriptor, metal::execution_simdgroup> op;
        using size = metal::dextents<int, 2>;
        metal::tensor<device T, size, metal::tensor_inline> left((device T*)x, size(K, 16));
        metal::tensor<threadgroup T, size, metal::tensor_inline> right(tile, size(16, 32));
        auto part = left.template slice<16, 16>(0, 0);
        using Left = metal::remove_addrspace_t<decltype(part)>;
        using Right = metal::remove_addrspace_t<decltype(right)>;
        auto sum = op.template get_destination_cooperative_tensor<Left, Right, float>();
        for (ushort i = 0; i < sum.get_capacity(); ++i) {
            if (sum.is_valid_element(i)) sum[i] = 0.0f;
        }
        for (int k = 0; k < K; k += 16) {
            for (int e = 0; e < 16; ++e) tile[lane * 16 + e] = w[(column + int(lane)) * K + k + e];
            simdgroup_barrier(mem_flags::mem_threadgroup);
            part = left.template slice<16, 16>(k, 0);
            op.run(part, right, sum);
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
        for (ushort i = 0; i < sum.get_capacity(); ++i) {
            if (!sum.is_valid_element(i)) continue;
            const auto at = sum.get_multidimensional_index(i);
            out[at[1] * N + column + at[0]] = sum[i];
        }
    """
    x = mx.array(RANDOM.standard_normal((16, 48)).astype(np.float32)).astype(mx.bfloat16)
    w = mx.array(RANDOM.standard_normal((64, 48)).astype(np.float32)).astype(mx.bfloat16)
    return Sample(
        source,
        {"x": x, "w": w},
        {"out": ((16, 64), mx.float32)},
        {
            "grid": (2 * 32, 1, 1),
            "threadgroup": (32, 1, 1),
            "template": [("T", mx.bfloat16), ("K", 48), ("N", 64)],
        },
        [as_float64(x) @ as_float64(w).T],
    )


COUNTING_SORT = _counting_sort()
TILED_PRODUCT = _tiled_product()
TENSOR_PRODUCT = _tensor_product()
SAMPLES = {"counting sort": COUNTING_SORT, "tiled product": TILED_PRODUCT, "tensor product": TENSOR_PRODUCT}
