"""Passes over one cache, each taken back when it has been timed: mlx-lm's own over chains, and ours over trees."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from kernels import gated_delta_tree, sample, tree_attention, tree_convolution
from kernels.gated_delta_tree.problem import Recurrence
from kernels.probing import Kernel, UnavailableError
from kernels.qmm import variants
from kernels.qmm.reference import Product
from kernels.sample.one_threadgroup_per_row import Sample
from kernels.tree_attention import choice
from kernels.tree_attention.problem import TreeAttention
from kernels.tree_convolution.problem import TreeConvolution
from worker.engine.kernel_set import STOCK, KernelSet
from worker.engine.tree import TokenTree
from worker.engine.verify.copies import mapped
from worker.engine.verify.verifier import Cache, Verifier, evaluate

Run = TypeVar("Run")


@dataclass(frozen=True)
class Times:
    """Milliseconds. whole: of a pass, until the likeliest token of each row is known.

    Of it, build: until the graph of the pass stands. submit: from then until the device has been given all of it.
    commit: after the pass, of the path.
    """

    build: float
    submit: float
    whole: float
    commit: float


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


class TreePasses:
    """Passes of a verifier; a tree of one node is plain decoding."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.model = verifier.model
        self.cache = verifier.new_cache()

    def forward(self, tree: TokenTree) -> mx.array:
        return self.verifier.forward(tree, self.cache)

    def settle(self) -> None:
        """Compute what else a pass leaves: nothing before its commit."""

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        self.verifier.commit(tree, path, self.cache)
        evaluate(self.cache)

    def forget(self, tree: TokenTree) -> None:
        if len(tree) > 1:
            self.verifier.abandon(tree, self.cache)


class ChainPasses(TreePasses):
    """mlx-lm's own passes over chains of as many tokens; what they write stays, there is nothing to commit."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache = make_prompt_cache(model)

    def forward(self, tree: TokenTree) -> mx.array:
        logits: mx.array = self.model(mx.array([tree.tokens]), cache=self.cache)[0]
        return logits

    def settle(self) -> None:
        evaluate(self.cache)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        pass

    def forget(self, tree: TokenTree) -> None:
        pass


def timed(passes: TreePasses, tree: TokenTree, path: Sequence[int] | None) -> Times:
    """One pass, and the commit of `path`; None: the pass is forgotten."""
    rewind = Rewind(passes.cache)
    begun = time.perf_counter()
    chosen = mx.argmax(passes.forward(tree), axis=-1)
    built = time.perf_counter()
    mx.async_eval(chosen)  # type: ignore[no-untyped-call]
    submitted = time.perf_counter()
    mx.eval(chosen)
    passes.settle()
    ended = time.perf_counter()
    if path is None:
        passes.forget(tree)
    else:
        passes.commit(tree, path)
    committed = time.perf_counter()
    rewind()
    return Times(*(1e3 * spent for spent in (built - begun, submitted - built, ended - begun, committed - ended)))


def timed_in_decoding(passes: TreePasses, tree: TokenTree, path: Sequence[int] | None) -> Times:
    """Times of the second of two such passes.

    In decoding passes of a kind follow one another: MLX takes the buffers of the one before, and updates its CUDA
    graphs. After passes of another kind it finds other buffers, and graphs that do not fit.
    """
    timed(passes, tree, path)
    return timed(passes, tree, path)


def logits_of(passes: TreePasses, tree: TokenTree) -> npt.NDArray[np.float32]:
    """[N, vocabulary]."""
    rewind = Rewind(passes.cache)
    rows = np.array(passes.forward(tree).astype(mx.float32))
    passes.settle()
    passes.forget(tree)
    rewind()
    return rows


def cache_bytes(cache: Cache) -> int:
    arrays: list[mx.array] = []
    mapped(list(cache), arrays.append)
    return sum(array.nbytes for array in arrays)


class UntriedKernels(KernelSet):
    """The first variant of each kernel that this machine can make, without trying it in a child process first.

    For benchmarks that compare results themselves, where trying costs more than what is measured.
    """

    def __init__(self, fuses_siblings: bool = True) -> None:
        self.fuses_siblings = fuses_siblings
        self._made: dict[tuple[str, Hashable], Any] = {}
        self._names: set[str] = set()

    @property
    def name(self) -> str:
        return " ".join(sorted(self._names)) or STOCK.name

    def product(self, dtype: mx.Dtype, group_size: int, bits: int) -> Product | None:
        return self._run(variants.KERNEL, variants.Configuration(dtype, group_size, bits))

    def attention(self, dtype: mx.Dtype, head_size: int) -> TreeAttention | None:
        return self._run(tree_attention.KERNEL, choice.Configuration(dtype, head_size))

    def recurrence(self, configuration: gated_delta_tree.Configuration) -> Recurrence | None:
        return self._run(gated_delta_tree.KERNEL, configuration)

    def convolution(self, dtype: mx.Dtype, size: int) -> TreeConvolution | None:
        return self._run(tree_convolution.KERNEL, tree_convolution.Configuration(dtype, size))

    def sampler(self, dtype: mx.Dtype) -> Sample | None:
        return self._run(sample.KERNEL, dtype)

    def _run(self, kernel: Kernel[Any, Run], configuration: Hashable) -> Run | None:
        key = (kernel.name, configuration)
        if key not in self._made:
            self._made[key] = self._make(kernel, configuration)
        made: Run | None = self._made[key]
        return made

    def _make(self, kernel: Kernel[Any, Run], configuration: Hashable) -> Run | None:
        for name, make in kernel.variants.items():
            try:
                run = make(configuration)
            except UnavailableError:
                continue
            self._names.add(f"{kernel.name}:{name}")
            return run
        return None
