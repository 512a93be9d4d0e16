"""What a tree pass costs on a large hybrid: Qwen3.8-27B's shape, random 4-bit weights.

In one run and in turns: a pass of mlx-lm over a chain of n tokens on its own caches, and a tree pass over n nodes,
after short and long contexts; then the commit; then the peak memory of plain decoding and of speculative decoding.
Caches are filled with random rows, because what a pass costs does not depend on their values.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import qwen3_5
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from bench.report import save, table
from worker.engine.tree import TokenTree
from worker.engine.verify.selfcheck import random_tree
from worker.engine.verify.verifier import Cache, Verifier, evaluate

SHAPE = {
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_value_heads": 48,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rms_norm_eps": 1e-6,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "vocab_size": 1024,
}
MAX_DEPTH = 16


def random_model(shape: dict[str, Any], bits: int = 4, group_size: int = 64) -> Any:
    """A model of `shape` in bfloat16 with quantized random weights, made layer by layer."""
    mx.random.seed(0)
    model = qwen3_5.TextModel(qwen3_5.TextModelArgs.from_dict(shape))
    model.set_dtype(mx.bfloat16)
    nn.quantize(model, group_size=group_size, bits=bits)
    for layer in model.layers:
        mx.eval(layer.parameters())
    mx.eval(model.parameters())
    mx.clear_cache()
    return model


def fill(cache: Cache, context: int, shape: dict[str, Any]) -> None:
    """Random rows for `context` tokens, and a random recurrent state."""
    heads, width = shape["num_key_value_heads"], shape["head_dim"]
    values, size = shape["linear_num_value_heads"], shape["linear_value_head_dim"]
    channels = 2 * shape["linear_num_key_heads"] * shape["linear_key_head_dim"] + values * size
    for layer in cache:
        if isinstance(layer, ArraysCache):
            layer[0] = mx.random.normal((1, shape["linear_conv_kernel_dim"] - 1, channels)).astype(mx.bfloat16)
            layer[1] = 0.1 * mx.random.normal((1, values, size, shape["linear_key_head_dim"]))
        else:
            layer.update_and_fetch(*(mx.random.normal((1, heads, context, width)).astype(mx.bfloat16) for _ in "kv"))
    evaluate(cache)


class Rewind:
    """Takes a cache back to where it was, without copying rows."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._marks = [list(c.cache) if isinstance(c, ArraysCache) else c.offset for c in cache]

    def __call__(self) -> None:
        for layer, mark in zip(self._cache, self._marks, strict=True):
            if isinstance(layer, ArraysCache):
                layer.cache = list(mark)
            else:
                layer.offset = mark


def milliseconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


class Measurement:
    """Stock chain passes and tree passes over one model at one context length."""

    def __init__(self, model: Any, shape: dict[str, Any], context: int) -> None:
        self.vocabulary = shape["vocab_size"]
        self.rng = random.Random(0)
        self.verifier = Verifier(model)
        self.stock, self.ours = make_prompt_cache(model), self.verifier.new_cache()
        for cache in (self.stock, self.ours):
            mx.random.seed(1)
            fill(cache, context, shape)

    def chain(self, nodes: int) -> float:
        """Milliseconds of mlx-lm's own pass over `nodes` tokens."""
        tokens = mx.array([[self.rng.randrange(self.vocabulary) for _ in range(nodes)]])
        rewind = Rewind(self.stock)
        logits = self.verifier.model
        spent = milliseconds(lambda: self._settle(logits(tokens, cache=self.stock)[0], self.stock))
        rewind()
        return spent

    def tree(self, nodes: int) -> tuple[float, float]:
        """Milliseconds of a tree pass, and of the commit of a path that is not a prefix of the rows."""
        tree = self._tree(nodes)
        path = tree.path(max(range(nodes), key=lambda node: tree.depths[node]))
        rewind = Rewind(self.ours)
        spent = milliseconds(lambda: mx.eval(mx.argmax(self.verifier.forward(tree, self.ours), axis=-1)))
        committed = milliseconds(lambda: self._commit(tree, path))
        rewind()
        return spent, committed

    def _settle(self, logits: mx.array, cache: Cache) -> None:
        mx.eval(mx.argmax(logits, axis=-1))
        evaluate(cache)

    def _commit(self, tree: TokenTree, path: list[int]) -> None:
        self.verifier.commit(tree, path, self.ours)
        evaluate(self.ours)

    def _tree(self, nodes: int) -> TokenTree:
        pending = self.rng.randrange(self.vocabulary)
        return random_tree(pending, nodes, min(MAX_DEPTH, max(1, nodes // 2)), self.vocabulary, self.rng)

    def peak(self, nodes: int, passes: int = 24) -> int:
        """Peak bytes of decoding with passes of `nodes` nodes; one node is mlx-lm's own plain decoding."""
        cache = self.stock if nodes == 1 else self.ours
        rewind = Rewind(cache)
        mx.clear_cache()
        mx.reset_peak_memory()
        for _ in range(passes):
            if nodes == 1:
                self._settle(self.verifier.model(mx.array([[1]]), cache=cache)[0], cache)
            else:
                tree = self._tree(nodes)
                mx.eval(mx.argmax(self.verifier.forward(tree, cache), axis=-1))
                self._commit(tree, tree.path(self.rng.randrange(nodes)))
        rewind()
        return mx.get_peak_memory()


def measure(model: Any, shape: dict[str, Any], options: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    costs: list[Any] = []
    memory: list[Any] = []
    for context in options.contexts:
        measurement = Measurement(model, shape, context)
        for nodes in options.nodes:
            rounds = [(measurement.chain(nodes), *measurement.tree(nodes)) for _ in range(options.rounds + 1)][1:]
            chain, tree, commit = (float(value) for value in np.median(np.array(rounds), axis=0))
            costs.append([context, nodes, chain, tree, tree / chain, commit])
            print(costs[-1], flush=True)
        plain = measurement.peak(1)
        for nodes in [n for n in options.nodes if n > 1]:
            peak = measurement.peak(nodes)
            memory.append([context, nodes, plain / 1e9, peak / 1e9, peak / plain])
            print(memory[-1], flush=True)
        del measurement
        mx.clear_cache()
    return costs, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 8192])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--small", action="store_true", help="a model of the same kind for a machine without a GPU")
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    shape = {**SHAPE, **(SMALL if options.small else {})}
    model = random_model(shape)
    print(f"weights {mx.get_active_memory() / 1e9:.2f} GB", flush=True)
    costs, memory = measure(model, shape, options)
    cost_headings = ["context", "nodes", "mlx-lm chain ms", "tree ms", "tree / chain", "commit ms"]
    memory_headings = ["context", "nodes", "plain peak GB", "speculative peak GB", "ratio"]
    print(table(cost_headings, costs))
    print(table(memory_headings, memory))
    if options.save:
        content = {
            "shape": shape,
            "costs": {"headings": cost_headings, "rows": costs},
            "memory": {"headings": memory_headings, "rows": memory},
        }
        print(save(options.save, content))


if __name__ == "__main__":
    main()
