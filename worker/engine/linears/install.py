"""Exchanging the quantised linears of a model in memory for ones that multiply by a kernel, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from kernels.qmm.reference import Product, reference
from kernels.qmm.shapes import TRIED_ROWS, Matrix
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
    exchangeable = {path: module for path, module in modules.values() if installation.has_kernel(module)}
    linears = {path: module for path, module in exchangeable.items() if type(module) is nn.QuantizedLinear}
    groups = siblings(model, linears) if kernels.fuses_siblings and linears else []
    joined = [[linears[path] for path in group] for group in groups]
    inside = {path for group in groups for path in group}
    installation.try_matrices([*joined, *([module] for path, module in exchangeable.items() if path not in inside)])
    together = [group for group, members in zip(groups, joined, strict=True) if installation.join(members)]
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
        self._known: set[Matrix] = set()
        self._refused: set[Matrix] = set()
        self._asked: set[Weights] = set()
        self._used: set[Weights] = set()

    def has_kernel(self, module: Any) -> bool:
        kind = Kind.of(module) if type(module) in _EXCHANGED else None
        return kind is not None and self._run(kind) is not None

    def try_matrices(self, groups: Iterable[list[Any]]) -> None:
        """Find out which matrices may be tried here. groups: modules whose rows become one matrix each."""
        matrices = {_matrix(group) for group in groups} - self._known
        self._known |= matrices
        self._refused |= self._kernels.refused_matrices(matrices)

    def _may_be_tried(self, modules: list[Any]) -> bool:
        self.try_matrices([modules])
        return _matrix(modules) not in self._refused

    def exchange(self, module: Any) -> bool:
        """Whether the module, if it is one of mlx.nn that is not exchanged yet, has a product of its own now."""
        if not self.has_kernel(module) or not self._may_be_tried([module]):
            return False
        product = self._product(Packed.of(_kind(module), module))
        if product is None:
            return False
        module._product, module.__class__ = product, _EXCHANGED[type(module)]
        return True

    def join(self, modules: list[Any]) -> bool:
        """Whether the linears, which are given the same x, have one product together now."""
        if not self._may_be_tried(modules):
            return False
        product = self._product(stacked(modules, _kind(modules[0])))
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


def _kind(module: Any) -> Kind:
    """Of a module that has a kernel."""
    kind = Kind.of(module)
    assert kind is not None
    return kind


def _matrix(modules: list[Any]) -> Matrix:
    """Of the rows of all modules' weights, which are of one kind."""
    kind = _kind(modules[0])
    columns = sum(int(module["weight"].shape[0]) for module in modules)
    return Matrix(*_weights(kind), kind.depth, columns)


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
