"""What a pass costs on a large hybrid: Qwen3.8-27B's shape, random 4-bit weights.

In one run and in turns, on the same weights: a pass of mlx-lm over a chain of n tokens on its own caches, a tree pass
over n nodes with MLX's own operations, and one with the kernels of this machine, after short and long contexts; each
beside what one token costs in the same way, and each after a pass of its own kind, as in decoding. Then the commits,
and the peak memory of plain decoding and of decoding with trees. Caches are filled with random rows, because what a
pass costs does not depend on their values.

The difference is between the logits of both tree passes, in percent of the largest logit: the largest of all, and the
largest of the median row. The rounding is the largest between the tree pass without kernels and mlx-lm's own pass over
the tree's deepest path. Exits with 1 when the median row differs by more than what a model is verified with in 16 bit,
and some row by more than rounding explains.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx_lm.models import qwen3_5
from mlx_lm.models.cache import ArraysCache

from bench import pass_profile
from bench.passes import ChainPasses, Rewind, TreePasses, UntriedKernels, cache_bytes, logits_of, timed_in_decoding
from bench.report import save, table
from worker.engine.kernel_set import KernelSet
from worker.engine.linears import install_kernels
from worker.engine.tree import TokenTree
from worker.engine.verify.selfcheck import TOLERANCE_16_BIT, random_tree
from worker.engine.verify.submission import MOST_BLOCKS
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
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "vocab_size": 256,
}
SMALL_OPTIONS: dict[str, Any] = {"nodes": [1, 2, 5], "contexts": [16, 300], "rounds": 1}
MAX_DEPTH = 16
BITS, GROUP_SIZE = 4, 64
COST_HEADINGS = [
    "context",
    "nodes",
    "chain ms",
    "tree ms",
    "kernels ms",
    "chain c(n)/c(1)",
    "tree c(n)/c(1)",
    "kernels c(n)/c(1)",
    "tree / chain",
    "kernels / chain",
    "tree commit ms",
    "kernels commit ms",
    "difference %",
    "median row %",
    "rounding %",
]
PROFILE_HEADINGS = ["context", *pass_profile.HEADINGS]
MEMORY_HEADINGS = [
    "context",
    "nodes",
    "plain peak GB",
    "tree peak GB",
    "kernels peak GB",
    "tree / plain",
    "kernels / plain",
]


def random_model(shape: dict[str, Any]) -> Any:
    """A model of `shape` in bfloat16 with quantized random weights, made layer by layer."""
    mx.random.seed(0)
    model = _unevaluated(shape)
    for layer in model.layers:
        mx.eval(layer.parameters())
    mx.eval(model.parameters())
    mx.clear_cache()
    return model


def twin(model: Any, shape: dict[str, Any]) -> Any:
    """Another model of the same arrays, whose modules can be exchanged."""
    other = _unevaluated(shape)
    other.update(model.parameters())
    return other


def _unevaluated(shape: dict[str, Any]) -> Any:
    model = qwen3_5.TextModel(qwen3_5.TextModelArgs.from_dict(shape))
    model.set_dtype(mx.bfloat16)
    nn.quantize(model, group_size=GROUP_SIZE, bits=BITS)
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


class Measurement:
    """The three kinds of passes over one model at one context length."""

    def __init__(
        self,
        model: Any,
        faster: Any,
        kernels: KernelSet,
        shape: dict[str, Any],
        context: int,
        most_blocks: int = MOST_BLOCKS,
    ) -> None:
        """faster: the twin of `model` in which `kernels` are installed. most_blocks: see `verify.submission`."""
        self.vocabulary = shape["vocab_size"]
        self.rng = random.Random(0)
        self.chain, self.tree = ChainPasses(model), TreePasses(Verifier(model, most_blocks=most_blocks))
        self.kernels = TreePasses(Verifier(faster, kernels=kernels, most_blocks=most_blocks))
        for passes in (self.chain, self.tree, self.kernels):
            mx.random.seed(1)
            fill(passes.cache, context, shape)

    def costs(self, nodes: Sequence[int], rounds: int) -> npt.NDArray[np.float64]:
        """Milliseconds, [rounds, len(nodes), 5]: of a chain pass, of both tree passes, and of their commits.

        What is committed is a path that is no prefix. Each round has all numbers of nodes in turn, because a host that
        other machines share is at times half as fast as at others.
        """
        taken = [[self._times(count) for count in nodes] for _ in range(rounds + 1)]
        return np.array(taken[1:])

    def _times(self, nodes: int) -> list[float]:
        tree = self.random_tree(nodes)
        times = [timed_in_decoding(passes, tree, _deepest(tree)) for passes in (self.chain, self.tree, self.kernels)]
        return [*(one.whole for one in times), *(one.commit for one in times[1:])]

    def differences(self, nodes: int) -> list[float]:
        """What the kernels change in the logits: at most, and in the median row; and what rounding does."""
        tree = self.random_tree(nodes)
        path = _deepest(tree)
        chain = TokenTree(tree.tokens[0])
        for node, token in enumerate(tree.tokens[one] for one in path[1:]):
            chain.add(node, token, 1.0)
        stock, faster = logits_of(self.tree, tree), logits_of(self.kernels, tree)
        changed = _differences(faster, stock)
        rounding = _differences(logits_of(self.chain, chain), stock[path])
        return [float(changed.max()), float(np.median(changed)), float(rounding.max())]

    def profile(self, nodes: int, rounds: int) -> list[list[Any]]:
        named = {"mlx-lm chain": self.chain, "tree": self.tree, "tree with kernels": self.kernels}
        return pass_profile.profile(named, self.random_tree(nodes), rounds)

    def random_tree(self, nodes: int) -> TokenTree:
        pending = self.rng.randrange(self.vocabulary)
        return random_tree(pending, nodes, min(MAX_DEPTH, max(1, nodes // 2)), self.vocabulary, self.rng)

    def peak(self, passes: TreePasses, nodes: int, weights: int, rounds: int = 24) -> int:
        """Peak bytes of decoding with passes of `nodes` nodes, as if nothing but this model and this cache were there.

        weights: bytes of the model.
        """
        rewind = Rewind(passes.cache)
        mx.clear_cache()
        mx.reset_peak_memory()
        held = mx.get_active_memory()
        for _ in range(rounds):
            tree = self.random_tree(nodes)
            mx.eval(mx.argmax(passes.forward(tree), axis=-1))
            passes.settle()
            passes.commit(tree, tree.path(self.rng.randrange(nodes)))
        rewind()
        return mx.get_peak_memory() - held + weights + cache_bytes(passes.cache)


def _deepest(tree: TokenTree) -> list[int]:
    return tree.path(max(range(len(tree)), key=lambda node: tree.depths[node]))


def _differences(got: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Largest of each row [N], in percent of the largest logit of all."""
    differences: npt.NDArray[np.float32] = 100 * np.abs(got - expected).max(axis=1) / np.abs(expected).max()
    return differences


Lines = list[list[Any]]


def measure(
    model: Any, faster: Any, kernels: KernelSet, shape: dict[str, Any], weights: int, options: argparse.Namespace
) -> tuple[Lines, Lines, Lines]:
    """Lines of costs, of memory, and of the profile."""
    costs: Lines = []
    memory: Lines = []
    profiles: Lines = []
    for context in options.contexts:
        measurement = Measurement(model, faster, kernels, shape, context, options.most_blocks)
        taken = measurement.costs(options.nodes, options.rounds)
        ratios = np.median(taken[:, :, :3] / taken[:, :1, :3], axis=0).tolist()
        beside = np.median(taken[:, :, 1:3] / taken[:, :, :1], axis=0).tolist()
        for number, (nodes, medians) in enumerate(zip(options.nodes, np.median(taken, axis=0).tolist(), strict=True)):
            times, commits = medians[:3], medians[3:]
            differences = measurement.differences(nodes)
            costs.append([context, nodes, *times, *ratios[number], *beside[number], *commits, *differences])
            _show(COST_HEADINGS, costs)
        for nodes in options.profile:
            for line in measurement.profile(nodes, options.rounds):
                profiles.append([context, *line])
                _show(PROFILE_HEADINGS, profiles)
        if options.memory:
            plain = measurement.peak(measurement.chain, 1, weights)
            for nodes in [nodes for nodes in options.nodes if nodes > 1]:
                peaks = [measurement.peak(one, nodes, weights) for one in (measurement.tree, measurement.kernels)]
                memory.append(
                    [context, nodes, *(peak / 1e9 for peak in (plain, *peaks)), *(one / plain for one in peaks)]
                )
                _show(MEMORY_HEADINGS, memory)
        del measurement
        mx.clear_cache()
    return costs, memory, profiles


def _show(headings: list[str], lines: Lines) -> None:
    shown = table(headings, lines[-1:]).splitlines()
    print(shown[-1] if len(lines) > 1 else "\n".join(shown), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8, 12, 16, 24, 32], help="the first: c(1)")
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 8192])
    parser.add_argument(
        "--rounds", type=int, default=5, help="of all passes in turn; medians count, also of the ratios within a round"
    )
    parser.add_argument("--memory", action="store_true", help="measure the peak memory too")
    parser.add_argument("--profile", type=int, nargs="+", default=[], help="where the time goes, for so many nodes")
    parser.add_argument(
        "--most-blocks",
        type=int,
        default=MOST_BLOCKS,
        help="of a piece in which a pass is handed to the device; 0: all of it when its graph stands",
    )
    parser.add_argument("--unfused", action="store_true", help="a product for each linear, not one for siblings")
    parser.add_argument("--small", action="store_true", help="a small model of the kind, for a machine without a GPU")
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    if options.small:
        vars(options).update(SMALL_OPTIONS)

    shape = {**SHAPE, **(SMALL if options.small else {})}
    model = random_model(shape)
    weights = mx.get_active_memory()
    kernels = UntriedKernels(fuses_siblings=not options.unfused)
    faster = twin(model, shape)
    installed = install_kernels(faster, kernels)
    print(
        f"weights {weights / 1e9:.2f} GB; kernels multiply for {len(installed.alone)} linears alone and for "
        f"{len(installed.together)} groups of siblings",
        flush=True,
    )
    costs, memory, profiles = measure(model, faster, kernels, shape, weights, options)
    print(f"kernels: {kernels.name}")
    found = {
        "costs": (COST_HEADINGS, costs),
        "memory": (MEMORY_HEADINGS, memory),
        "profile": (PROFILE_HEADINGS, profiles),
    }
    print(table(COST_HEADINGS, costs), flush=True)
    if options.save:
        tables = {name: {"headings": headings, "rows": lines} for name, (headings, lines) in found.items() if lines}
        about = {"shape": shape, "kernels": kernels.name, "most_blocks": options.most_blocks}
        print(save(options.save, {**about, **tables}))
    sys.exit(not right(costs))


def right(costs: Lines) -> bool:
    """Whether the logits of each pass with kernels are, but for rounding, those of the pass without."""
    for line in costs:
        most, median, rounding = (
            line[COST_HEADINGS.index(f"{name} %")] for name in ("difference", "median row", "rounding")
        )
        if median > 100 * TOLERANCE_16_BIT and most > rounding:
            return False
    return True


if __name__ == "__main__":
    main()
