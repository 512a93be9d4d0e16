"""The Metal text of tree attention, run on the host: numbers, bytes, schedules, barriers."""

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tree_attention_cases import Case, as_float64, assert_close

from kernels.host import Defect, RunOptions, metal_kernel, running
from kernels.host.options import Order
from kernels.tree_attention.metal import metal
from kernels.tree_attention.problem import DTYPES, HEAD_SIZES
from kernels.tree_attention.source import source

METAL = metal(metal_kernel)

# Every head size with every dtype and every number of rows a simdgroup; ragged tiles, spans and blocks.
CASES = [
    Case(1, 1, 1, 1, 64),
    Case(1, 1, 2, 31, 64, mx.bfloat16, sinks=True),
    Case(3, 1, 5, 27, 64, mx.float16),
    Case(7, 7, 3, 60, 64, window=20),
    Case(9, 3, 8, 150, 64, mx.bfloat16, window=64, sinks=True),
    Case(5, 1, 13, 40, 64, mx.float16, window=7, keep=3),
    Case(2, 1, 3, 4093, 64, mx.bfloat16),
    Case(2, 2, 1, 1000, 64, mx.float16, window=128, keep=4, sinks=True),
    Case(3, 3, 9, 33, 80, mx.bfloat16),
    Case(5, 1, 1, 500, 80, window=300, sinks=True),
    Case(6, 2, 17, 66, 80, mx.float16),
    Case(1, 1, 32, 1, 96),
    Case(4, 2, 6, 129, 96, mx.bfloat16, window=50, keep=1),
    Case(3, 1, 20, 45, 96, mx.float16, sinks=True),
    Case(6, 1, 2, 300, 128, mx.bfloat16, sinks=True),
    Case(8, 2, 8, 77, 128, mx.float16, window=40),
    Case(3, 1, 32, 20, 128, mx.bfloat16, window=4),  # the window ends within the tree
    Case(1, 1, 7, 250, 128, window=5),
    Case(1, 1, 4, 90, 256, mx.bfloat16),
    Case(3, 1, 5, 62, 256, mx.float16, window=30, sinks=True),
    Case(7, 1, 5, 31, 256),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_node_gets_what_float64_gives(case: Case) -> None:
    with running(RunOptions()) as reports:
        assert_close(case.run(METAL), case)
    assert all(report.findings == () for report in reports)


# Some 4096 columns in ragged spans, under every head size and dtype.
FULL_OR_WINDOWED: list[tuple[int | None, int]] = [(None, 0), (2000, 0), (3001, 4), (4500, 2)]
LONG = [
    Case(
        heads=(2, 3, 4)[number % 3],
        groups=(1, 3, 2)[number % 3],
        nodes=(3, 1, 4, 2)[number % 4],
        committed=4029 + 17 * number,
        size=size,
        dtype=dtype,
        window=FULL_OR_WINDOWED[number % 4][0],
        keep=FULL_OR_WINDOWED[number % 4][1],
        sinks=number % 5 < 2,
    )
    for number, (size, dtype) in enumerate((size, dtype) for size in HEAD_SIZES for dtype in DTYPES)
]
SCHEDULES: list[Order] = ["forward", "reverse", "seeded"]


@pytest.mark.parametrize(("number", "case"), list(enumerate(LONG)), ids=map(str, LONG))
def test_a_context_of_4096_columns_in_every_schedule(number: int, case: Case) -> None:
    with running(RunOptions(order=SCHEDULES[number // 3 % 3], order_seed=number)) as reports:
        assert_close(case.run(METAL), case)
    assert len(reports) == 2
    seen = int(case.visible.any(axis=0).sum())
    assert reports[0].traffic["keys"].bytes_read == case.groups * seen * case.size * case.dtype.size


@pytest.mark.parametrize("sinks", [False, True], ids=["without sinks", "with sinks"])
def test_a_context_of_one_span_is_one_launch(sinks: bool) -> None:
    for committed, launches in ((123, 1), (124, 2)):  # of 128 columns, with the tree's
        with running(RunOptions()) as reports:
            case = Case(2, 1, 5, committed, 64, mx.bfloat16, sinks=sinks)
            assert_close(case.run(METAL), case)
        assert len(reports) == launches


@pytest.mark.parametrize("committed", [40, 200], ids=["one span", "two spans"])
def test_what_a_model_transposes_for_its_next_product_is_not_copied(committed: int) -> None:
    case = Case(6, 2, 5, committed, 64, mx.bfloat16)
    with running(RunOptions(metered=False, static_checks=False)):
        out = case.run(METAL)
    bits = mx.view(out.swapaxes(1, 2), mx.uint16)
    assert bits.shape == (1, 5, 6, 64)
    assert memoryview(bits).strides == (5 * 6 * 64 * 2, 6 * 64 * 2, 64 * 2, 2)
    assert memoryview(mx.view(out, mx.uint16)).strides == (5 * 6 * 64 * 2, 64 * 2, 6 * 64 * 2, 2)


def test_what_depends_on_the_division_alone_is_made_once() -> None:
    inputs: list[list[mx.array]] = []

    def factory(**options: Any) -> Any:
        kernel = metal_kernel(**options)

        def noting(**call: Any) -> Any:
            inputs.append(call["inputs"])
            return kernel(**call)

        return noting

    attention = metal(factory)
    for case in (Case(2, 1, 5, 40, 64), Case(2, 1, 5, 40, 64, sinks=True), Case(2, 1, 5, 40, 64)):
        with running(RunOptions(metered=False, static_checks=False)):
            assert_close(case.run(attention), case)
    first, with_sinks, again = inputs
    own = [index for index in range(7) if first[index] is not again[index]]
    assert own == [0, 1, 2, 3]  # queries, keys, values and ancestors, which the test makes for each case
    assert first[6] is not with_sinks[6]


ORDERS: list[tuple[Order, int, int]] = [("forward", 1, 5), ("reverse", 1, 0), ("seeded", 1, 2), ("seeded", 2, 3)]


@pytest.mark.parametrize(
    "case", [Case(3, 1, 6, 150, 64, mx.bfloat16, sinks=True), Case(2, 2, 3, 35, 256, window=20)], ids=str
)
def test_no_schedule_changes_a_bit(case: Case) -> None:
    results = []
    for order, seed, layout in ORDERS:
        with running(RunOptions(order=order, order_seed=seed, layout_seed=layout)):
            results.append(case.run(METAL))
    assert_close(results[0], case)
    assert all(mx.array_equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize(
    ("case", "times"),
    [
        (Case(8, 2, 8, 100, 64), 1),  # 32 rows of 64
        (Case(4, 2, 32, 40, 128, mx.bfloat16), 1),  # 64 rows of 64
        (Case(3, 1, 32, 40, 64, mx.float16), 2),  # 96 rows of 64
        (Case(5, 1, 13, 20, 256, mx.bfloat16), 3),  # 65 rows of 32
        (Case(4, 4, 3, 500, 80, mx.bfloat16), 1),  # four spans
    ],
    ids=str,
)
def test_a_byte_of_the_cache_is_read_once_for_each_block_of_rows(case: Case, times: int) -> None:
    with running(RunOptions()) as reports:
        case.run(METAL)
    held = case.groups * case.columns * case.size * case.dtype.size
    for cache in ("keys", "values"):
        traffic = reports[0].traffic[cache]
        assert traffic.most_reads == times
        assert (traffic.unique_bytes_read, traffic.bytes_read) == (held, times * held)


def test_columns_that_no_node_sees_are_not_read() -> None:
    case = Case(2, 1, 3, 400, 64, mx.bfloat16, window=100, keep=4)
    with running(RunOptions()) as reports:
        assert_close(case.run(METAL), case)
    seen = int(case.visible.any(axis=0).sum())
    assert seen == 4 + 95 + 3  # the root is a part of its own window of 96 behind the first four
    assert reports[0].traffic["keys"].unique_bytes_read == seen * 64 * 2
    assert reports[0].traffic["values"].most_reads == 1


def test_memory_need_not_be_aligned_to_more_than_an_element() -> None:
    case = Case(2, 1, 3, 40, 64, mx.bfloat16)
    with running(RunOptions(byte_offsets={"queries": 2, "keys": 6, "values": 10})):
        assert_close(case.run(METAL), case)


def test_strides_are_those_of_the_arrays() -> None:
    case = Case(4, 2, 5, 40, 64)
    queries, keys, values = case.arrays
    lying = (
        mx.contiguous(queries.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1),
        mx.contiguous(keys.swapaxes(1, 2)).swapaxes(1, 2),
        mx.contiguous(values.swapaxes(2, 3)).swapaxes(2, 3),
    )
    with running(RunOptions()) as reports:
        assert_close(case.run(METAL, lying), case)
    assert reports[0].traffic["values"].most_reads == 1


@pytest.mark.parametrize("committed", [40, 200], ids=["one span", "two spans"])
def test_strides_are_those_of_ancestors_and_sinks_too(committed: int) -> None:
    case = Case(8, 2, 9, committed, 64, mx.bfloat16, window=30, sinks=True)
    assert case.sink_logits is not None
    every_third = mx.repeat(case.ancestors, 3)[::3]
    every_second = mx.repeat(case.sink_logits, 2).astype(mx.float16)[::2]
    with running(RunOptions()):
        found = METAL(*case.arrays, every_third, scale=0.125, window=30, sinks=every_second)
    np.testing.assert_allclose(as_float64(found), case.expected, rtol=2.0**-8, atol=5e-4)  # sinks of 11 bits


def test_it_takes_scores_beyond_what_exp_holds() -> None:
    case = Case(2, 1, 3, 40, 64, sinks=True)
    queries, keys, values = case.arrays
    with running(RunOptions()):
        found = as_float64(case.run(METAL, (queries * 10_000, keys, values)))
    wide = as_float64(queries)[0] * 10_000 @ as_float64(keys)[0, 0].T / 8
    highest = np.where(case.visible, wide, -np.inf).argmax(axis=-1)  # one column outweighs all others
    np.testing.assert_allclose(found[0], as_float64(values)[0, 0][highest], atol=1e-4)


BARRIER = re.compile(r"threadgroup_barrier\(mem_flags::mem_threadgroup\);")
BARRIERS = [match.start() for match in BARRIER.finditer(source("metal_walk.metal"))]
INSTEAD = {
    "nothing": "",
    "a simdgroup's barrier": "simdgroup_barrier(mem_flags::mem_threadgroup);",
    "no memory ordered": "threadgroup_barrier(mem_flags::mem_none);",
}


def _with_barrier(position: int, instead: str) -> Callable[..., Any]:
    def factory(**options: Any) -> Any:
        text = options["source"]
        if options["name"].startswith("tree_attention_whole"):
            assert BARRIER.match(text, position)
            text = text[:position] + BARRIER.sub(instead, text[position:], count=1)
        return metal_kernel(**{**options, "source": text})

    return factory


def _defects(factory: Callable[..., Any]) -> set[Defect]:
    with running(RunOptions(raise_on_findings=False, static_checks=False)) as reports:
        Case(3, 1, 4, 60, 64).run(metal(factory))
    (report,) = reports
    return report.defects


@pytest.mark.parametrize("instead", INSTEAD.values(), ids=INSTEAD)
@pytest.mark.parametrize("position", BARRIERS)
def test_every_barrier_is_missed_when_it_is_weaker_or_gone(position: int, instead: str) -> None:
    assert _defects(_with_barrier(position, instead)) & {Defect.RACE, Defect.UNINITIALISED_READ}


def test_there_are_four_barriers_and_with_them_nothing_is_amiss() -> None:
    assert len(BARRIERS) == 4
    assert not _defects(metal_kernel)
