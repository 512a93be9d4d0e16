"""The Metal kernel, executed on the host, against the engine's draw."""

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from sample_cases import DRAWS, KINDS, LONG_TIES, engine_logprobs, engine_tokens, rows_of

import kernels.sample
from kernels.host import Defect, Report, RunOptions, metal_kernel, running
from kernels.host.options import Order
from kernels.sample.choice import complaint
from kernels.sample.draws import Draw, Drawn
from kernels.sample.metal import metal_sample
from kernels.sample.one_threadgroup_per_row import FEWER_THREADS, THREADS, one_threadgroup_per_row
from kernels.sample.reference import gumbel_noise, survivors
from kernels.texts import text_beside

source = partial(text_beside, kernels.sample.__file__)

SAMPLE = metal_sample(metal_kernel)
DTYPES = [mx.float32, mx.bfloat16, mx.float16]


def drawn_by(
    logits: mx.array, draws: list[Draw], top: int = 0, options: RunOptions | None = None, sample: Any = SAMPLE
) -> tuple[Drawn, Report]:
    with running(options or RunOptions()) as reports:
        return sample(logits, draws, top), reports[0]


def outputs_of(drawn: Drawn) -> list[Any]:
    return [np.array(value).tolist() for value in vars(drawn).values()]


def assert_engine_agrees(drawn: Drawn, logits: mx.array, draws: list[Draw], top: int) -> None:
    """Everything, but for the rows that are left to the host."""
    rows = engine_logprobs(logits)
    here = ~np.array(drawn.needs_host)
    tokens = np.array(drawn.tokens)
    assert tokens[here].tolist() == np.array(engine_tokens(logits, draws))[here].tolist()
    assert np.array(drawn.logprobs).tolist() == rows[np.arange(len(rows)), tokens].tolist()
    for row, ids, values in zip(rows, np.array(drawn.top_tokens), np.array(drawn.top_logprobs), strict=True):
        best = [int(i) for i in np.lexsort((np.arange(len(row)), -row.astype(np.float64)))[:top] if row[i] > -np.inf]
        assert ids.tolist() == best + [-1] * (top - len(best))
        assert values.tolist() == row[best].tolist() + [-np.inf] * (top - len(best))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocabulary", "top"), [(9, 32), (517, 0), (8192, 0), (9001, 20)])
def test_tokens_logprobs_and_the_top_are_the_engines(dtype: mx.Dtype, vocabulary: int, top: int) -> None:
    needed = 0
    for first in (0, 2):
        draws = [*DRAWS, LONG_TIES]
        logits = rows_of(len(draws), vocabulary, dtype, first)
        drawn, _ = drawn_by(logits, draws, top)
        assert_engine_agrees(drawn, logits, draws, top)
        needed += int(np.array(drawn.needs_host).sum())
    assert needed <= 1


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_every_kind_of_row_under_every_filter(kind: int) -> None:
    """One row for all draws, so that each meets each kind."""
    draws = [*DRAWS, LONG_TIES]
    logits = mx.repeat(rows_of(1, 517, mx.bfloat16, kind), len(draws), axis=0)
    drawn, _ = drawn_by(logits, draws)
    assert_engine_agrees(drawn, logits, draws, 0)


def test_the_largest_vocabulary() -> None:
    """Two values only, and a tie that top-k cuts far from the start."""
    row = np.zeros((2, 2**18), dtype=np.float32)
    row[:, -5:] = 3
    draws = [Draw(temperature=1.0, top_k=200_000, seed=1), Draw(temperature=1.0, top_p=0.9, seed=2, position=1)]
    logits = mx.array(row).astype(mx.float16)
    drawn, _ = drawn_by(logits, draws, 7, RunOptions(metered=False))
    assert drawn.top_tokens.tolist() == [[*range(2**18 - 5, 2**18), 0, 1]] * 2
    assert not drawn.needs_host.any().item()
    assert_engine_agrees(drawn, logits, draws, 7)


def test_results_are_the_same_bits_in_every_schedule_and_at_any_alignment() -> None:
    draws = [DRAWS[2], DRAWS[7], LONG_TIES]
    logits = rows_of(3, 517, mx.float32, first=2)
    orders: list[tuple[Order, int]] = [("forward", 1), ("reverse", 1), ("seeded", 1), ("seeded", 2)]
    results = [
        outputs_of(drawn_by(logits, draws, 9, RunOptions(order=order, order_seed=seed, layout_seed=seed))[0])
        for order, seed in orders
    ]
    shifted = RunOptions(byte_offsets={"logits": 4, "normalisers": 4, "parameters": 4})
    results.append(outputs_of(drawn_by(logits, draws, 9, shifted)[0]))
    assert all(result == results[0] for result in results)


def test_a_row_that_leaves_nothing_gives_no_token() -> None:
    rows = np.zeros((4, 64), dtype=np.float32)
    rows[0] = -np.inf
    rows[1, 5] = np.nan
    rows[2, 63] = np.inf
    drawn, _ = drawn_by(mx.array(rows), [Draw(), *DRAWS[1:4]], 3)
    assert drawn.tokens.tolist()[:3] == [-1, -1, -1]
    assert drawn.logprobs.tolist()[:3] == [-np.inf] * 3
    assert drawn.top_tokens.tolist() == [[-1] * 3] * 3 + [[0, 1, 2]]
    assert drawn.tokens[3].item() >= 0
    assert not drawn.needs_host.any().item()


def test_the_host_decides_where_two_scores_tie() -> None:
    """Of two equally noisy tokens, the temperature at which both have the same score, and others near it."""
    row = np.full(64, -20.0, dtype=np.float32)
    row[[10, 51]] = [1.0, 0.0]
    position = next(p for p in range(99) if np.diff(gumbel_noise(5, p, np.array([10, 51])))[0] > 0.5)
    less, more = gumbel_noise(5, position, np.array([10, 51]))
    tie = 1 / (more - less)
    draws = [Draw(temperature=tie * factor, top_k=2, seed=5, position=position) for factor in (1, 0.999, 1.001)]
    drawn, _ = drawn_by(mx.array(np.stack([row] * 3)), draws)
    assert drawn.needs_host.tolist() == [True, False, False]
    assert drawn.tokens.tolist()[1:] == [10, 51]


def test_the_host_decides_where_the_winner_may_be_outside_the_nucleus() -> None:
    """Probabilities 1/2 and eight times 1/16 with top_p 1/2: rounding decides whether the eight are in."""
    row = np.full(64, -np.inf, dtype=np.float32)
    row[7], row[20:28] = np.log(8), 0
    draws = [Draw(temperature=1.0, top_p=0.5, seed=2, position=position) for position in range(32)]
    drawn, _ = drawn_by(mx.array(np.stack([row] * 32)), draws)
    tokens, needs_host = np.array(drawn.tokens), np.array(drawn.needs_host)
    assert needs_host.tolist() == (tokens != 7).tolist()
    assert 4 < needs_host.sum() < 28


def values_read(logits: mx.array, asked: Draw, passes: int) -> int:
    """Of a row drawn in so many passes: each thread looks the winner up, and survivors are read again to be scored."""
    rows = engine_logprobs(logits)
    alive = sum(len(survivors(row, asked)) for row in rows)
    return int(passes * rows.size + len(rows) * THREADS + alive)


def test_a_greedy_draw_reads_the_logits_once_and_one_without_filters_twice() -> None:
    logits = rows_of(2, 2050, mx.bfloat16)
    for asked, expected in ((DRAWS[0], 2 * 2050), (DRAWS[1], values_read(logits, DRAWS[1], 2))):
        _, report = drawn_by(logits, [asked] * 2)
        traffic = report.traffic["logits"]
        assert traffic.bytes_read == 2 * expected
        assert traffic.bytes_read_once_per_threadgroup == 2 * 2 * 2050
        assert report.threadgroups == 2
    assert report.threadgroup_bytes <= 20 * 1024


def test_filters_read_the_logits_once_a_level() -> None:
    """Levels of a bfloat16: the distance, two of its bits, and two of the id where a tie is cut."""
    logits = rows_of(1, 2050, mx.bfloat16, first=KINDS.index("ties"))
    for asked, levels in ((DRAWS[2], 3), (LONG_TIES, 5)):
        _, report = drawn_by(logits, [asked])
        assert report.traffic["logits"].bytes_read == 2 * values_read(logits, asked, levels + 2)


def test_the_probe_accepts_the_kernel_and_rejects_one_that_draws_otherwise() -> None:
    for dtype in DTYPES:
        assert complaint(SAMPLE, dtype) is None
    header = source("metal_header.metal")
    wrong = one_threadgroup_per_row(metal_kernel, source("metal.metal"), header.replace("0x9E3779B9u", "0x9E3779B8u"))
    assert complaint(wrong, mx.float32) == "tokens differ from the reference's in mlx.core.float32"


def barriers() -> list[int]:
    lines = source("metal.metal").splitlines()
    return [number for number, line in enumerate(lines) if "threadgroup_barrier" in line]


INSTEAD = {
    "nothing": "",
    "a simdgroup's barrier": "simdgroup_barrier(mem_flags::mem_threadgroup);",
    "no memory ordered": "threadgroup_barrier(mem_flags::mem_none);",
}


def report_of(body: str) -> Report:
    """Rows with a long tie, a nucleus of uncertain end and a top reach all barriers."""
    row = np.full((3, 1025), -1.0, dtype=np.float32)
    row[1:] = -np.inf
    row[1:, 7], row[1:, 20:28] = np.log(8), 0
    draws = [LONG_TIES, Draw(temperature=1.0, top_p=0.5, seed=2), Draw(temperature=1.0, top_p=0.5, seed=2, position=1)]
    sample = one_threadgroup_per_row(metal_kernel, body, source("metal_header.metal"))
    return drawn_by(mx.array(row), draws, 5, RunOptions(raise_on_findings=False, static_checks=False), sample)[1]


@pytest.mark.parametrize("instead", INSTEAD.values(), ids=INSTEAD)
@pytest.mark.parametrize("barrier", barriers())
def test_no_barrier_can_be_weaker_or_left_out(barrier: int, instead: str) -> None:
    lines = source("metal.metal").splitlines()
    lines[barrier] = instead
    assert report_of("\n".join(lines)).defects & {Defect.RACE, Defect.UNINITIALISED_READ}


def test_with_all_barriers_nothing_is_amiss() -> None:
    assert report_of(source("metal.metal")).findings == ()


def test_fewer_threads_give_the_same_bits() -> None:
    draws = [*DRAWS, LONG_TIES]
    logits = rows_of(len(draws), 2050, mx.bfloat16, first=1)
    few = metal_sample(metal_kernel, FEWER_THREADS)
    assert outputs_of(drawn_by(logits, draws, 9, sample=few)[0]) == outputs_of(drawn_by(logits, draws, 9)[0])


def test_one_text_serves_all_vocabularies() -> None:
    """What MLX compiles follows template values, types, and whether an input has 8 elements or more."""
    templates = []

    def factory(**options: Any) -> Any:
        def kernel(**call: Any) -> Any:
            templates.append(call["template"])
            return metal_kernel(**options)(**call)

        return kernel

    with running(RunOptions(metered=False)):
        for vocabulary in (9, 2050):
            metal_sample(factory)(rows_of(1, vocabulary, mx.float32), DRAWS[:1], 0)
    assert templates == [[("T", mx.float32), ("THREADS", THREADS)]] * 2
