"""What drawing the tokens of a pass costs: our kernel beside the host and beside mlx-lm's sampler, in one run.

Each time is that from logits on the device to tokens, and log-probabilities where asked for, on the host; works take
turns. "host" is a log-softmax on the device, and rows that come to the host and are drawn there in float64: every row,
or "one row", which is the least that a walk down a tree does. Greedy and without log-probabilities it is MLX's argmax
of all rows. Ours includes drawing again on the host what the kernel leaves to it. mlx-lm's draws are not keyed: its
tokens are others. Exits with 1 when a token or log-probability of ours is not the host's.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import make_sampler

from bench.report import save, table
from bench.turns import median_seconds
from kernels import sample
from kernels.sample import Draw
from kernels.sample.one_threadgroup_per_row import Sample
from worker.engine.logprobs import likelihood_in
from worker.engine.sampling import Row, Sampling, draw, likeliest, log_softmax

VOCABULARIES = (151_936, 248_320)
ROWS = (1, 16, 32)
SMALL: dict[str, Any] = {"vocabularies": (3001,), "rows": (1, 4), "turns": 1}
SETTINGS = {
    "greedy": Draw(),
    "temperature": Draw(temperature=0.8),
    "top_p": Draw(temperature=0.8, top_p=0.9),
    "all filters": Draw(temperature=0.8, top_p=0.9, top_k=40, min_p=0.02),
}
TOP = 20
POSITION = 1000  # of the first row's token
EXPONENT = 1.5  # the token of rank r has a probability of about r^-1.5: 60 make up a nucleus of 0.9
HEADINGS = [
    "vocabulary",
    "rows",
    "draw",
    "logprobs",
    "ms",
    "host ms",
    "one row ms",
    "mlx-lm ms",
    "host / ours",
    "mlx-lm / ours",
    "left to host",
    "wrong",
]

Listed = list[tuple[int, float]]
"""Ids and log-probabilities of the likeliest tokens of a row."""


@dataclass(frozen=True)
class Drawn:
    """tokens [N]; top [N] where asked for; left: how many rows a kernel left to the host."""

    tokens: list[int]
    top: list[Listed]
    left: int = 0


def logits(rows: int, vocabulary: int, dtype: mx.Dtype) -> mx.array:
    """[rows, vocabulary], each row in an order of its own."""
    random = np.random.default_rng(rows)
    by_rank = -EXPONENT * np.log1p(np.arange(vocabulary)) + 20
    made = np.stack([random.permutation(by_rank) for _ in range(rows)]) + random.normal(0, 0.3, (rows, vocabulary))
    return mx.array(made.astype(np.float32)).astype(dtype)


def draws_of(setting: Draw, rows: int) -> list[Draw]:
    """One a row, as of consecutive positions."""
    filters = (setting.temperature, setting.top_p, setting.top_k, setting.min_p)
    return [Draw(*filters, seed=2**40 + 7, position=POSITION + row) for row in range(rows)]


def ours(run: Sample, logits: mx.array, draws: list[Draw], top: int) -> Drawn:
    found = run(logits, draws, top)
    mx.eval(found.tokens, found.needs_host, found.top_tokens, found.top_logprobs)
    tokens = np.array(found.tokens)
    left = np.flatnonzero(np.array(found.needs_host))
    for row in left:
        tokens[row] = _on_host(_host_row(log_softmax(logits[row : row + 1]), 0), draws[row])
    return Drawn(tokens.tolist(), _listed(found.top_tokens, found.top_logprobs) if top else [], len(left))


def host(logits: mx.array, draws: list[Draw], top: int, only: int | None = None) -> Drawn:
    """As a pass whose walk visits all rows, or the first `only`."""
    logprobs = log_softmax(logits)
    if draws[0].temperature == 0 and not top:
        return Drawn(np.array(likeliest(logprobs)).tolist(), [])
    mx.eval(logprobs)
    drawn = Drawn([], [])
    for row, how in enumerate(draws[:only]):
        values = _host_row(logprobs, row)
        drawn.tokens.append(_on_host(values, how))
        if top:
            drawn.top.append(likelihood_in(values, drawn.tokens[-1], top).best)
    return drawn


def of_mlx_lm(logits: mx.array, draws: list[Draw], top: int) -> Drawn:
    """As its generation does: a log-softmax, the sampler over all rows, and the likeliest as its server lists them."""
    how = draws[0]
    sampler = make_sampler(how.temperature, how.top_p if how.top_p < 1 else 0.0, how.min_p, top_k=how.top_k)
    logprobs = log_softmax(logits)
    tokens = sampler(logprobs)
    if not top:
        return Drawn(np.array(tokens).tolist(), [])
    ids = mx.argpartition(-logprobs, kth=top - 1, axis=-1)[:, :top]
    values = mx.take_along_axis(logprobs, ids, axis=-1).astype(mx.float32)
    mx.eval(tokens, ids, values)
    return Drawn(np.array(tokens).tolist(), _listed(ids, values))


def _listed(ids: mx.array, values: mx.array) -> list[Listed]:
    rows = zip(np.array(ids).tolist(), np.array(values).tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def _host_row(logprobs: mx.array, row: int) -> Row:
    return np.array(logprobs[row].astype(mx.float32))


def _on_host(row: Row, how: Draw) -> int:
    return draw(row, Sampling(how.temperature, how.top_p, how.top_k, how.min_p, seed=how.seed), how.position)


def wrong(found: Drawn, expected: Drawn) -> int:
    """Rows with another token, and rows with another list."""
    pairs = [*zip(found.tokens, expected.tokens, strict=True), *zip(found.top, expected.top, strict=True)]
    return sum(mine != theirs for mine, theirs in pairs)


def measured(run: Sample, logits: mx.array, setting: str, top: int, turns: int) -> list[Any]:
    """One line of the table."""
    rows, vocabulary = logits.shape
    draws = draws_of(SETTINGS[setting], rows)
    mine, theirs = partial(ours, run, logits, draws, top), partial(host, logits, draws, top)
    works = [mine, theirs, partial(theirs, 1), partial(of_mlx_lm, logits, draws, top)]
    times = [spent * 1e3 for spent in median_seconds(works, turns)]
    found = mine()
    ratios = [times[1] / times[0], times[3] / times[0]]
    return [vocabulary, rows, setting, top, *times, *ratios, found.left, wrong(found, theirs())]


def compared(options: argparse.Namespace, dtype: mx.Dtype, run: Sample) -> list[list[Any]]:
    """The table's rows. run: the kernel."""
    lines = []
    for vocabulary in options.vocabularies:
        for rows in options.rows:
            of_pass = logits(rows, vocabulary, dtype)
            mx.eval(of_pass)
            for setting in SETTINGS:
                for top in (0, TOP):
                    lines.append(measured(run, of_pass, setting, top, options.turns))
                    print(table(HEADINGS, lines[-1:]).splitlines()[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--vocabularies", type=int, nargs="+", default=VOCABULARIES)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--turns", type=int, default=3, help="rounds, of which the median counts")
    parser.add_argument("--small", action="store_true", help="a small vocabulary, for a machine without a GPU")
    parser.add_argument("--save-as", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    if options.small:
        vars(options).update(SMALL)
    dtype: mx.Dtype = getattr(mx, options.dtype)
    chosen = sample.chosen(dtype)
    print(f"ours is {chosen.name}; refused: {chosen.refused}", flush=True)
    lines = compared(options, dtype, chosen.run)
    print(table(HEADINGS, lines), flush=True)
    if options.save_as:
        content = {"ours": chosen.name, "options": {"dtype": options.dtype, "turns": options.turns}}
        print(save(options.save_as, {**content, "headings": HEADINGS, "rows": lines}))
    sys.exit(any(line[-1] for line in lines))


if __name__ == "__main__":
    main()
