"""Bytes that a kernel asks for, counted by hand."""

import mlx.core as mx
import numpy as np
import pytest
from host_runs import run
from sample_kernels import TENSOR_PRODUCT, TILED_PRODUCT

from kernels.host import RunOptions

X = np.arange(256, dtype=np.float32)


def test_every_width_of_access() -> None:
    source = """
        uint i = thread_position_in_grid.x;
        float4 a = *(const device float4*)(x + 4 * i);
        float2 b = *(const device float2*)(x + 2 * i);
        const device half* h = (const device half*)x;
        vec<float, 8> e = *(const device vec<float, 8>*)(y + 8 * i);
        float bytes = float(*((const device uchar*)z + i)) + float(*(const device ulong*)(z + 2 * i));
        out[i] = a.x + b.y + float(h[i]) + e[7] + bytes;
    """
    _, report = run(source, {"x": X, "y": X, "z": X}, {"out": ((32,), mx.float32)}, grid=(32, 1, 1))
    x, y, z, out = (report.traffic[name] for name in ("x", "y", "z", "out"))
    assert x.bytes_read == 32 * (16 + 8 + 2)
    assert (x.bytes, x.unique_bytes_read, x.most_reads) == (1024, 512, 3)
    assert (y.bytes_read, y.unique_bytes_read, y.most_reads) == (1024, 1024, 1)
    assert (z.bytes_read, z.unique_bytes_read, z.most_reads) == (32 * 9, 256, 2)
    assert (out.bytes_written, out.unique_bytes_written, out.most_writes, out.bytes_read) == (128, 128, 1, 0)


def test_threadgroups_that_read_the_same() -> None:
    source = "uint i = thread_position_in_grid.x; out[i] = x[i % 64] + x[thread_index_in_threadgroup / 32];"
    _, report = run(source, {"x": X}, {"out": ((256,), mx.float32)}, grid=(256, 1, 1), threadgroup=(64, 1, 1))
    x = report.traffic["x"]
    assert (x.bytes_read, x.unique_bytes_read) == (2 * 1024, 256)
    assert x.most_reads == 4 + 4 * 32
    assert x.bytes_read_once_per_threadgroup == 4 * 256


def test_atomics_count_as_read_and_written() -> None:
    source = """
        atomic_fetch_add_explicit(&n[0], 1u, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_device);
        if (thread_index_in_threadgroup == 0) atomic_store_explicit(&n[1], 7u, memory_order_relaxed);
    """
    (n,), report = run(source, {}, {"n": ((2,), mx.uint32)}, grid=(40, 1, 1), atomic_outputs=True, init_value=0)
    assert np.array(n).tolist() == [40, 7]
    traffic = report.traffic["n"]
    assert (traffic.bytes_read, traffic.bytes_written, traffic.atomic_bytes) == (160, 164, 164)


def test_shapes_and_scalars_are_buffers_too() -> None:
    source = "uint i = thread_position_in_grid.x; out[i] = x[i] * s + float(x_shape[0] + x_ndim);"
    _, report = run(source, {"x": X, "s": 2.0}, {"out": ((256,), mx.float32)}, grid=(256, 1, 1))
    read = {name: traffic.bytes_read for name, traffic in report.traffic.items()}
    assert read == {"x": 1024, "x_shape": 1024, "x_ndim": 1024, "s": 1024, "out": 0}


def test_matrix_tiles_are_counted_by_element() -> None:
    _, report = TILED_PRODUCT.run(RunOptions())
    x, w, out = (report.traffic[name] for name in ("x", "w", "out"))
    assert (w.bytes, w.bytes_read, w.most_reads) == (32 * 24 * 2, 32 * 24 * 2, 1)
    assert (x.bytes_read, x.most_reads) == (3 * 8 * 32 * 2, 3)
    assert (out.bytes_written, out.most_writes) == (8 * 24 * 2, 1)


def test_tensor_operands_are_counted_once_a_run() -> None:
    _, report = TENSOR_PRODUCT.run(RunOptions(layout_seed=5))
    x, w = report.traffic["x"], report.traffic["w"]
    assert (w.bytes_read, w.most_reads) == (64 * 48 * 2, 1)
    assert (x.bytes_read, x.most_reads) == (2 * 16 * 48 * 2, 2)


def test_counts_are_those_of_the_source_not_of_the_optimiser() -> None:
    source = """
        uint i = thread_position_in_grid.x;
        float sum = 0;
        for (int n = 0; n < 5; ++n) sum += x[i];
        out[i] = sum;
        out[i] = sum;
    """
    _, report = run(source, {"x": X}, {"out": ((256,), mx.float32)}, grid=(256, 1, 1))
    assert (report.traffic["x"].most_reads, report.traffic["out"].most_writes) == (5, 2)


@pytest.mark.parametrize("metered", [True, False])
def test_counts_of_the_schedule(metered: bool) -> None:
    source = """
        uint i = thread_position_in_grid.x;
        float sum = simd_sum(x[i]);
        simdgroup_barrier(mem_flags::mem_none);
        threadgroup_barrier(mem_flags::mem_none);
        out[i] = sum;
    """
    _, report = run(
        source,
        {"x": X},
        {"out": ((256,), mx.float32)},
        grid=(256, 1, 1),
        threadgroup=(128, 1, 1),
        options=RunOptions(metered=metered),
    )
    # Two threadgroups of four simdgroups; each of the 128 threads waits three times and returns, plus the scheduler.
    assert (report.threadgroups, report.barriers, report.collectives) == (2, 2, 16)
    assert report.switches == 2 * (128 * 4 + 1)
    assert bool(report.traffic) == metered
