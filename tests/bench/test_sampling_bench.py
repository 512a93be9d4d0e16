"""The sampling bench compares the same draws, and sees wrong ones."""

from argparse import Namespace
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from bench import sampling
from bench.sampling import HEADINGS, SETTINGS, TOP
from kernels.sample.draws import Draw, Drawn
from kernels.sample.reference import reference_sample

WRONG = HEADINGS.index("wrong")


def test_a_line_for_each_way_to_draw(capsys: pytest.CaptureFixture[str]) -> None:
    lines = sampling.compared(Namespace(**sampling.SMALL), mx.bfloat16, reference_sample)
    assert [line[:4] for line in lines] == [
        [3001, rows, setting, top] for rows in (1, 4) for setting in SETTINGS for top in (0, TOP)
    ]
    for line in lines:
        assert len(line) == len(HEADINGS)
        ms, host_ms, _, stock_ms, to_host, to_stock = line[4:10]
        assert to_host == host_ms / ms
        assert to_stock == stock_ms / ms
        assert line[10:] == [0, 0]
    assert len(capsys.readouterr().out.splitlines()) == len(lines)


def test_rows_that_are_left_to_the_host_are_drawn_there() -> None:
    def unsure(logits: mx.array, draws: list[Draw], top: int) -> Drawn:
        found = reference_sample(logits, draws, top)
        return replace(found, tokens=found.tokens + 1, needs_host=mx.array([True, False, True]))

    line = sampling.measured(unsure, sampling.logits(3, 500, mx.bfloat16), "all filters", 0, 1)
    assert line[10:] == [2, 1]


def test_other_log_probabilities_are_wrong() -> None:
    def off(logits: mx.array, draws: list[Draw], top: int) -> Drawn:
        found = reference_sample(logits, draws, top)
        return replace(found, top_logprobs=found.top_logprobs.at[1, TOP - 1].add(-0.01))

    logits = sampling.logits(3, 500, mx.bfloat16)
    assert sampling.measured(off, logits, "greedy", TOP, 1)[WRONG] == 1


def test_the_bench_draws_at_the_positions_of_the_rows() -> None:
    logits = mx.zeros((64, 1000))  # nothing but the noise decides
    draws = sampling.draws_of(SETTINGS["temperature"], 32)
    assert [draw.position for draw in draws] == list(range(1000, 1032))
    assert len(set(sampling.host(logits[:32], draws, 0).tokens)) > 25
    assert sampling.host(logits[:32], draws, 0, 3).tokens == sampling.host(logits[:32], draws, 0).tokens[:3]


def test_mlx_lm_lists_the_same_log_probabilities() -> None:
    logits = sampling.logits(3, 500, mx.bfloat16)
    draws = sampling.draws_of(SETTINGS["greedy"], 3)
    theirs, expected = sampling.of_mlx_lm(logits, draws, TOP), sampling.host(logits, draws, TOP)
    assert theirs.tokens == expected.tokens
    assert [sorted(value for _, value in row) for row in theirs.top] == [
        sorted(value for _, value in row) for row in expected.top
    ]


def test_the_nucleus_is_that_of_text() -> None:
    """As long as the bench says."""
    row = np.sort(np.array(sampling.logits(1, 151_936, mx.float32))[0].astype(np.float64))[::-1]
    mass = np.cumsum(np.exp(row - row[0]))
    assert 30 < np.count_nonzero(mass < 0.9 * mass[-1]) < 120
