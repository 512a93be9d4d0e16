"""Exchanging the quantised linears of a model in memory for ones that multiply by a kernel, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from kernels.qmm import MOST_ROWS
from kernels.qmm.reference import Product, reference
from kernels.qmm.variants import TOLERANCES
from worker.engine.kernel_set import KernelSet
from worker.engine.linears.packed import Kind, Packed, stacked
from worker.engine.linears.products import (
    ALL_ROWS,
    NO_ROWS,
    KernelEmbedding,
    KernelLinear,
    KernelProduct,
    SiblingProduct,
    SiblingProducts,
)
from worker.engine.linears.siblings import siblings

Weights = tuple[mx.Dtype, int, int]
"""What a product is asked for by: type, group size and bits."""

TRIED_ROWS = (8, 16, 24, MOST_ROWS)  # kernels are planned by the number of rows


@dataclass
class Installed:
    """Paths of what a kernel multiplies. alone: each by itself. together: siblings, one product for each group.

    rows: for which numbers of rows it does, see `let`.
    """

    alone: list[str]
    together: list[list[str]]
    products: list[KernelProduct] = field(repr=False)
    rows: range = ALL_ROWS

    def let(self, rows: range) -> None:
        """Leave x of these numbers of rows to the kernel from now on, others to MLX."""
        self.rows = rows
        for product in self.products:
            product.let(rows)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Leave all to MLX for a while."""
        rows = self.rows
        self.let(NO_ROWS)
        try:
            yield
        finally:
            self.let(rows)


def install_kernels(model: Any, kernels: KernelSet) -> Installed:
    """Let `kernels` multiply for the linears of `model`, and for its tied head, where x has up to 32 rows.

    This takes the place of what an earlier call installed; with STOCK the model is as mlx-lm made it. Only modules of
    the very classes of mlx.nn are exchanged, not what derives from them or does their work otherwise. A product that
    the kernel cannot make, or makes wrong, stays with MLX. Weights of siblings move into one matrix, of which their own
    are views from then on; that takes memory for one more group while it lasts.
    """
    modules: dict[int, tuple[str, Any]] = {}
    for path, module in model.named_modules():
        modules.setdefault(id(module), (path, module))
    for _, module in modules.values():
        _restore(module)
    installation = _Installation(kernels)
    linears = {path: module for path, module in modules.values() if type(module) is nn.QuantizedLinear}
    linears = {path: module for path, module in linears.items() if installation.has_kernel(module)}
    together = []
    if kernels.fuses_siblings and linears:
        together = [group for group in siblings(model, linears) if installation.join([linears[path] for path in group])]
    alone = [path for path, module in modules.values() if installation.exchange(module)]
    installation.forgo_unused()
    mx.clear_cache()
    return Installed(alone, together, installation.products)


class _Installation:
    """kernels: each of its products is tried once for matrices of one shape. products: all that modules have now."""

    def __init__(self, kernels: KernelSet) -> None:
        self._kernels = kernels
        self.products: list[KernelProduct] = []
        self._tried: dict[tuple[Kind, int], bool] = {}
        self._asked: set[Weights] = set()
        self._used: set[Weights] = set()

    def has_kernel(self, module: Any) -> bool:
        kind = Kind.of(module)
        return kind is not None and self._run(kind) is not None

    def exchange(self, module: Any) -> bool:
        """Whether the module, if it is one of mlx.nn that is not exchanged yet, has a product of its own now."""
        cls = _EXCHANGED.get(type(module))
        kind = None if cls is None else Kind.of(module)
        if kind is None or self._run(kind) is None:
            return False
        product = self._product(Packed.of(kind, module))
        if product is None:
            return False
        module._product, module.__class__ = product, cls
        return True

    def join(self, modules: list[Any]) -> bool:
        """Whether the linears, which are given the same x, have one product together now."""
        kind = Kind.of(modules[0])
        assert kind is not None
        product = self._product(stacked(modules, kind))
        if product is None:
            return False
        together = SiblingProducts(product, [int(module["weight"].shape[0]) for module in modules])
        for number, module in enumerate(modules):
            module._product = SiblingProduct(together, number, (module["weight"], module["scales"], module["biases"]))
            module.__class__ = KernelLinear
        return True

    def _product(self, packed: Packed) -> KernelProduct | None:
        run = self._run(packed.kind)
        if run is None:
            return None
        shape = (packed.kind, packed.columns)
        if shape not in self._tried:
            self._tried[shape] = _agrees(run, packed)
        if not self._tried[shape]:
            return None
        self.products.append(KernelProduct(run, packed))
        self._used.add(_weights(packed.kind))
        return self.products[-1]

    def forgo_unused(self) -> None:
        """Tell the kernels which products multiply nothing."""
        for weights in self._asked - self._used:
            self._kernels.forgo_product(*weights)

    def _run(self, kind: Kind) -> Product | None:
        weights = _weights(kind)
        self._asked.add(weights)
        return self._kernels.product(*weights)


def _weights(kind: Kind) -> Weights:
    return kind.dtype, kind.group_size, kind.bits


_EXCHANGED: Mapping[type, type] = {nn.QuantizedLinear: KernelLinear, nn.QuantizedEmbedding: KernelEmbedding}
_RESTORED: Mapping[type, type] = {exchanged: stock for stock, exchanged in _EXCHANGED.items()}


def _restore(module: Any) -> None:
    stock = _RESTORED.get(type(module))
    if stock is not None:
        module.__class__ = stock
        del module._product


def _agrees(run: Product, packed: Packed) -> bool:
    """Whether the kernel has a plan for matrices of this shape, and multiplies by this one as MLX does in float32."""
    kind = packed.kind
    how = (kind.group_size, kind.bits)
    wide_scales, wide_biases = packed.scales.astype(mx.float32), packed.biases.astype(mx.float32)
    for rows in TRIED_ROWS:
        x = mx.random.normal((rows, kind.depth), key=mx.random.key(rows)).astype(kind.dtype)
        expected = reference(x.astype(mx.float32), packed.w, wide_scales, wide_biases, *how)
        try:
            error = mx.abs(run(x, *packed.arrays, *how).astype(mx.float32) - expected).max()
            if not bool(error <= TOLERANCES[kind.dtype] * mx.abs(expected).max()):
                return False
        except (RuntimeError, ValueError):  # no plan, or a compiler's or a driver's complaint
            return False
    return True
