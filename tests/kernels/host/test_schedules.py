"""What Metal leaves open: a correct kernel gives the same bits however it is chosen, and a wrong one shows."""

import re

import mlx.core as mx
import numpy as np
import pytest
from host_runs import as_float64, run
from sample_kernels import COUNTING_SORT, SAMPLES, TENSOR_PRODUCT, TILED_PRODUCT, Sample

from kernels.host import Defect, RunOptions
from kernels.host.options import Order

ORDERS: list[tuple[Order, int]] = [("forward", 1), ("reverse", 1), ("seeded", 1), ("seeded", 2), ("seeded", 3)]
LAYOUT_SEEDS = [0, 1, 2, 3, 6, 7, 12]


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
def test_results_are_right_and_the_same_in_every_schedule_and_layout(sample: Sample) -> None:
    results = []
    for order, seed in ORDERS:
        for layout_seed in LAYOUT_SEEDS if order != "seeded" else [seed]:
            options = RunOptions(order=order, order_seed=seed, layout_seed=layout_seed)
            outputs, report = sample.run(options)
            assert report.findings == ()
            results.append(outputs)
    for output, expected in zip(results[0], sample.expected, strict=True):
        np.testing.assert_allclose(as_float64(output), expected, rtol=1e-2, atol=1e-3)
    for outputs in results[1:]:
        assert all(mx.array_equal(output, first) for output, first in zip(outputs, results[0], strict=True))


def test_the_order_of_threads_shows_in_a_kernel_that_depends_on_it() -> None:
    source = """
        threadgroup atomic_uint tickets;
        uint i = thread_position_in_threadgroup.x;
        if (i == 0) atomic_store_explicit(&tickets, 0u, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint ticket = atomic_fetch_add_explicit(&tickets, 1u, memory_order_relaxed);
        uint place = atomic_fetch_add_explicit((device atomic_uint*)total, 1u, memory_order_relaxed);
        out[thread_position_in_grid.x] = place * 100 + ticket;
    """
    seen = {}
    for order, seed in ORDERS:
        outputs, _ = run(
            source,
            {},
            {"out": ((96,), mx.uint32), "total": ((1,), mx.uint32)},
            grid=(96, 1, 1),
            threadgroup=(48, 1, 1),
            options=RunOptions(order=order, order_seed=seed),
            init_value=0,
        )
        seen[order, seed] = np.array(outputs[0])
    forward, reverse = np.arange(96), np.arange(96)[::-1]
    assert seen["forward", 1].tolist() == (forward * 100 + forward % 48).tolist()
    assert seen["reverse", 1].tolist() == (reverse * 100 + reverse % 48).tolist()
    for seed in (1, 2, 3):
        assert sorted(seen["seeded", seed] // 100) == list(range(96))
    assert len({tuple(order) for order in seen.values()}) == len(ORDERS)


@pytest.mark.parametrize("math_mode", ["safe", "relaxed", "fast"])
def test_contraction_rounds_a_product_and_its_sum_once_where_the_math_mode_allows(math_mode: str) -> None:
    source = """
        uint i = thread_position_in_grid.x;
        out[i] = x[i] * x[i] - 1.0f;
        const float square = x[i] * x[i];
        apart[i] = square - 1.0f;
        halves[i] = float(half(x[i]) * half(x[i]) - half(1.0f));
    """
    x = (1 + np.arange(32) * 2.0**-18).astype(np.float32)
    once = (x.astype(np.float64) ** 2 - 1).astype(np.float32)
    twice = x * x - np.float32(1)
    assert (once != twice).sum() > 16
    outputs = dict.fromkeys(("out", "apart", "halves"), ((32,), mx.float32))
    for contract in (False, True):
        (out, apart, halves), _ = run(
            source,
            {"x": x},
            outputs,
            grid=(32, 1, 1),
            compile_options={"math_mode": math_mode},
            options=RunOptions(contract=contract),
        )
        np.testing.assert_array_equal(np.array(out), once if contract else twice)
        np.testing.assert_array_equal(np.array(apart), once if contract and math_mode != "safe" else twice)
        np.testing.assert_allclose(np.array(halves), twice, atol=2.0**-10)


@pytest.mark.parametrize("flush", [False, True])
def test_denormals_are_zeros_in_arithmetic_on_demand(flush: bool) -> None:
    source = """
        uint i = thread_position_in_grid.x;
        out[i] = x[i] * 2.0f;
        sums[i] = simd_sum(i == 7 ? x[7] : 0.0f);
        halved[i] = y[i] * 0.5f;
        copied[i] = x[i];
    """
    tiny = np.float32(2.0**-140)
    outputs = dict.fromkeys(("out", "sums", "halved", "copied"), ((32,), mx.float32))
    options = RunOptions(flush_denormals=flush)
    inputs = {"x": np.full(32, tiny), "y": np.full(32, 1.5e-38, np.float32)}
    (out, sums, halved, copied), _ = run(source, inputs, outputs, grid=(32, 1, 1), options=options)
    kept = 0 if flush else 1
    assert np.array(out).tolist() == [2 * tiny * kept] * 32
    assert np.array(sums).tolist() == [tiny * kept] * 32
    np.testing.assert_allclose(np.array(halved), 0.75e-38 * kept, rtol=1e-5)
    assert np.array(copied).tolist() == [tiny] * 32


def test_a_kernel_that_assumes_where_matrix_elements_lie_is_right_in_layout_0_only() -> None:
    source = """
        simdgroup_matrix<float, 8, 8> a;
        simdgroup_load(a, x);
        uint lane = thread_index_in_simdgroup, quad = lane / 4;
        uint row = (quad & 4) + lane / 2 % 4, column = (quad & 2) * 2 + lane % 2 * 2;
        out[row * 8 + column] = a.thread_elements()[0];
        out[row * 8 + column + 1] = a.thread_elements()[1];
    """
    x = np.arange(64, dtype=np.float32)
    right = []
    for seed in LAYOUT_SEEDS:
        (out,), _ = run(
            source, {"x": x}, {"out": ((64,), mx.float32)}, grid=(32, 1, 1), options=RunOptions(layout_seed=seed)
        )
        assert sorted(np.array(out).tolist()) == x.tolist()
        right.append(np.array_equal(np.array(out), x))
    assert right == [seed == 0 for seed in LAYOUT_SEEDS]


def test_a_kernel_that_copies_destination_slots_into_an_operand_is_wrong_in_other_layouts() -> None:
    source = """
        using namespace mpp::tensor_ops;
        constexpr auto descriptor = matmul2d_descriptor(16, 16, 16);
        matmul2d<descriptor, metal::execution_simdgroup> op;
        using size = metal::dextents<int, 2>;
        metal::tensor<device float, size, metal::tensor_inline> X((device float*)x, size(16, 16));
        metal::tensor<device float, size, metal::tensor_inline> O(out, size(16, 16));
        using Operand = metal::remove_addrspace_t<decltype(X)>;
        auto product = op.template get_destination_cooperative_tensor<Operand, Operand, float>();
        auto left = op.template get_left_input_cooperative_tensor<float, float, float>();
        op.run(X, X, product);
        for (ushort i = 0; i < 8; ++i) left[i] = product[i];
        op.run(left, X, product);
        product.store(O);
        if (thread_index_in_simdgroup > 31) out[0] = 0;
    """
    x = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    right = []
    for seed in LAYOUT_SEEDS:
        options = RunOptions(layout_seed=seed)
        (out,), _ = run(source, {"x": x}, {"out": ((16, 16), mx.float32)}, grid=(32, 1, 1), options=options)
        right.append(np.allclose(np.array(out), x.astype(np.float64) @ x @ x, rtol=1e-4, atol=1e-4))
    assert right == [seed == 0 for seed in LAYOUT_SEEDS]


BARRIER = re.compile(r"(threadgroup|simdgroup)_barrier\(mem_flags::mem_threadgroup\);")


@pytest.mark.parametrize("sample", [COUNTING_SORT, TILED_PRODUCT, TENSOR_PRODUCT], ids=SAMPLES.keys())
def test_every_barrier_is_missed_when_it_is_gone(sample: Sample) -> None:
    for barrier in BARRIER.finditer(sample.source):
        without = sample.source[: barrier.start()] + sample.source[barrier.end() :]
        _, report = sample.run(RunOptions(raise_on_findings=False, static_checks=False), without)
        assert report.defects & {Defect.RACE, Defect.UNINITIALISED_READ}, without[barrier.start() - 200 :]


@pytest.mark.parametrize("sample", [COUNTING_SORT, TILED_PRODUCT], ids=["counting sort", "tiled product"])
def test_every_threadgroup_barrier_is_missed_when_it_orders_a_simdgroup_only(sample: Sample) -> None:
    for barrier in re.finditer(r"threadgroup_barrier", sample.source):
        weaker = f"{sample.source[: barrier.start()]}simdgroup_barrier{sample.source[barrier.end() :]}"
        _, report = sample.run(RunOptions(raise_on_findings=False, static_checks=False), weaker)
        assert report.defects & {Defect.RACE, Defect.UNINITIALISED_READ}, weaker[barrier.start() - 200 :]
