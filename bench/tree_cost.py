"""What does a tree cost beside a chain? Passes and commits on the caches as mlx-lm has them.

A tree pass over n nodes is timed against a pass of the model over n tokens on mlx-lm's own, untouched caches, in turns
within one run, so a drifting clock reaches both; the ratio is the median over the turns. Then the commit of a path that
is not a prefix of the rows, after contexts of several lengths. Contexts are random rows: what a pass costs does not
depend on their values. Exits with 1 when a tree costs over 1.10 of its chain, or a commit grows with the context.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from bench.report import save, table
from worker.engine.loading import Target, load_target
from worker.engine.models import ModelSpec
from worker.engine.tree import TokenTree
from worker.engine.verify.selfcheck import random_tree
from worker.engine.verify.verifier import Cache, Verifier, evaluate

MOST_PASS_RATIO = 1.10
# A commit that copies its buffers took 6.5 times as long after 4096 tokens as after 64 (x86-64 CPU, November 2026).
MOST_COMMIT_RATIO = 2.0
MAX_DEPTH = 8


def milliseconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


def fill(cache: Cache, context: int, model: Any) -> None:
    """Random rows for `context` tokens, of the shapes and types that the model itself writes."""
    written: list[Any] = make_prompt_cache(model)
    model(mx.array([[1]]), cache=written)
    for layer, example in zip(cache, written, strict=True):
        layer.update_and_fetch(*(random_rows(like, context) for like in (example.keys, example.values)))
    evaluate(cache)


def random_rows(like: mx.array, count: int) -> mx.array:
    """[1, heads, count, width], with heads, width and type of `like`."""
    return mx.random.normal((*like.shape[:2], count, like.shape[3]), like.dtype)


def trim(cache: Cache, tokens: int) -> None:
    """Drop the last `tokens` tokens."""
    for layer in cache:
        layer.trim(tokens)


def interleaved_tree(pending: int, nodes: int, vocabulary: int, rng: random.Random) -> TokenTree:
    """Two chains whose nodes take turns, so neither is a prefix of the rows; the even nodes are one."""
    tree = TokenTree(pending)
    tokens = rng.sample(range(vocabulary), nodes)
    for node in range(1, nodes):
        tree.add(max(0, node - 2), tokens[node], 1.0)
    return tree


class Passes:
    """The two kinds of passes of one model, each on caches of its own that hold the same number of tokens."""

    def __init__(self, target: Target, context: int) -> None:
        self.target, self.rng = target, random.Random(0)
        self.verifier = Verifier(target.model)
        self.stock: list[Any] = make_prompt_cache(target.model)
        self.ours = self.verifier.new_cache()
        for cache in (self.stock, self.ours):
            fill(cache, context, target.model)

    def chain(self, nodes: int) -> float:
        """Milliseconds of the model's own pass over `nodes` tokens."""
        tokens = mx.array([[self.rng.randrange(self.target.vocabulary) for _ in range(nodes)]])
        spent = milliseconds(lambda: mx.eval(self.target.model(tokens, cache=self.stock)))
        trim(self.stock, nodes)
        return spent

    def tree(self, nodes: int) -> float:
        """Milliseconds of a tree pass over `nodes` nodes."""
        pending = self.rng.randrange(self.target.vocabulary)
        tree = random_tree(pending, nodes, MAX_DEPTH, self.target.vocabulary, self.rng)
        spent = milliseconds(lambda: mx.eval(self.verifier.forward(tree, self.ours)))
        self.verifier.commit(tree, [0], self.ours)
        trim(self.ours, 1)
        return spent

    def commit(self, nodes: int) -> float:
        """Milliseconds of the commit of half of the nodes, which lie between the others."""
        pending = self.rng.randrange(self.target.vocabulary)
        tree = interleaved_tree(pending, nodes, self.target.vocabulary, self.rng)
        path = list(range(0, nodes, 2))
        mx.eval(self.verifier.forward(tree, self.ours))
        spent = milliseconds(lambda: self._commit(tree, path))
        trim(self.ours, len(path))
        return spent

    def _commit(self, tree: TokenTree, path: list[int]) -> None:
        self.verifier.commit(tree, path, self.ours)
        evaluate(self.ours)


def pass_row(passes: Passes, nodes: int, rounds: int) -> list[Any]:
    """Nodes, median milliseconds of chain and tree, and the median of their ratios; the first turn warms up."""
    turns = []
    for number in range(rounds + 1):
        if number % 2:
            chain, tree = passes.chain(nodes), passes.tree(nodes)
        else:
            tree, chain = passes.tree(nodes), passes.chain(nodes)
        turns.append((chain, tree, tree / chain))
    return [nodes, *(statistics.median(column) for column in zip(*turns[1:], strict=True))]


def commit_rows(target: Target, contexts: list[int], nodes: int, rounds: int) -> list[list[Any]]:
    """Per context: its length, the median milliseconds of a commit, and their ratio to the first context's."""
    lengths = [Passes(target, context) for context in contexts]
    turns = [[passes.commit(nodes) for passes in lengths] for _ in range(rounds + 1)][1:]
    medians = [statistics.median(column) for column in zip(*turns, strict=True)]
    return [[context, median, median / medians[0]] for context, median in zip(contexts, medians, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2@bfloat16")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--context", type=int, default=256, help="tokens before the passes")
    parser.add_argument("--commit-contexts", type=int, nargs="+", default=[64, 1024, 4096])
    parser.add_argument("--commit-nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--data-dir", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    target = load_target(ModelSpec.parse(options.model), options.data_dir / "models")
    passes = Passes(target, options.context)
    rows = [pass_row(passes, nodes, options.rounds) for nodes in options.nodes]
    headings = ["nodes", "chain ms", "tree ms", "tree / chain"]
    print(table(headings, rows), flush=True)
    commits = commit_rows(target, options.commit_contexts, options.commit_nodes, options.rounds)
    commit_headings = ["context", "commit ms", "ratio to the first"]
    print(table(commit_headings, commits))
    if options.save:
        content = {"context": options.context, "rounds": options.rounds, "commit_nodes": options.commit_nodes}
        content |= {"headings": headings, "rows": rows, "commits": {"headings": commit_headings, "rows": commits}}
        print(save(options.save, content))
    if any(row[-1] > MOST_PASS_RATIO for row in rows) or any(row[-1] > MOST_COMMIT_RATIO for row in commits):
        sys.exit(1)


if __name__ == "__main__":
    main()
