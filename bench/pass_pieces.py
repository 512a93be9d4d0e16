"""How many decoder blocks a pass is best handed to the device at a time.

Of Qwen3.8-27B's shape, with this machine's kernels, in one run and in turns: for each size, a pass over one token and
over trees, beside mlx-lm's own pass over one token. `worker.engine.verify.submission` says what a piece is.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import numpy as np

from bench.hybrid_passes import SHAPE, SMALL, fill, random_model, twin
from bench.passes import ChainPasses, TreePasses, UntriedKernels, timed_in_decoding
from bench.report import save, table
from worker.engine.linears import install_kernels
from worker.engine.tree import TokenTree
from worker.engine.verify.selfcheck import random_tree
from worker.engine.verify.verifier import Verifier

HEADINGS = ["most blocks", "nodes", "ms", "/ mlx-lm's one token", "/ one node in such pieces"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--blocks", type=int, nargs="+", default=[0, 4, 8, 16, 32], help="of a piece at most; 0: all in one piece"
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 16], help="the first: one node")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15, help="of all passes in turn, of which the medians count")
    parser.add_argument("--small", action="store_true", help="a small model of the kind, for a machine without a GPU")
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    shape = {**SHAPE, **(SMALL if options.small else {})}
    model = random_model(shape)
    kernels = UntriedKernels()
    plain = ChainPasses(model)
    divided = []
    for most_blocks in options.blocks:
        other = twin(model, shape)
        install_kernels(other, kernels)
        divided.append(TreePasses(Verifier(other, kernels=kernels, most_blocks=most_blocks)))
    for passes in (plain, *divided):
        fill(passes.cache, options.context, shape)
    rng = random.Random(0)
    taken = np.array([_round(plain, divided, options.nodes, shape, rng) for _ in range(options.rounds + 1)][1:])
    lines = _lines(taken, options.blocks, options.nodes)
    print(table(HEADINGS, lines))
    if options.save:
        print(save(options.save, {"shape": shape, "kernels": kernels.name, "headings": HEADINGS, "rows": lines}))


def _round(
    plain: ChainPasses, divided: list[TreePasses], nodes: list[int], shape: dict[str, Any], rng: random.Random
) -> list[float]:
    """Milliseconds: of mlx-lm's pass, then of each size of pieces for each number of nodes."""
    one = timed_in_decoding(plain, TokenTree(0), [0]).whole
    trees = [random_tree(0, count, max(1, count // 2), shape["vocab_size"], rng) for count in nodes]
    return [one, *(timed_in_decoding(passes, tree, None).whole for passes in divided for tree in trees)]


def _lines(taken: np.ndarray[Any, Any], sizes: list[int], nodes: list[int]) -> list[list[Any]]:
    rounds = taken[:, 1:].reshape(len(taken), len(sizes), len(nodes))
    return [
        [
            most_blocks,
            count,
            float(np.median(times)),
            float(np.median(times / taken[:, 0])),
            float(np.median(times / rounds[:, row, 0])),
        ]
        for row, most_blocks in enumerate(sizes)
        for count, times in zip(nodes, rounds[:, row].T, strict=True)
    ]


if __name__ == "__main__":
    main()
