"""Products by a kernel, and the classes that linears take on to use them."""

from __future__ import annotations

from itertools import accumulate

import mlx.core as mx
import mlx.nn as nn

from kernels.qmm import MOST_ROWS
from kernels.qmm.reference import Product
from worker.engine.linears.packed import Packed

Arrays = tuple[mx.array, mx.array, mx.array]
"""Weight, scales and biases."""

ALL_ROWS, NO_ROWS = range(1, MOST_ROWS + 1), range(0)


class KernelProduct:
    """x @ w.T for one matrix. What stays the same is looked up here, once: a pass of a large model has 500 of these."""

    __slots__ = ("_columns", "_depth", "_dtype", "_largest", "_operands", "_run", "_smallest", "arrays")

    def __init__(self, run: Product, packed: Packed) -> None:
        kind = packed.kind
        self._run, self._operands = run, (*packed.arrays, kind.group_size, kind.bits)
        self.arrays: Arrays = packed.arrays
        self._depth, self._columns, self._dtype = kind.depth, packed.columns, kind.dtype
        self.let(ALL_ROWS)

    def takes(self, x: mx.array) -> bool:
        """Whether x, [..., K], is one for the kernel.

        Kernels read x in vectors of up to 16 bytes, and MLX hands a contiguous view over as it is, wherever it begins.
        Here it begins at a multiple of 16 bytes: an array at the beginning of its buffer, rows of a larger one, such as
        the last of a prompt before the head, after whole rows of K elements, which are groups of 32 at least, and the
        columns of one row after the widths of heads or ranks, which are multiples of 8. In a pass over one token and
        over three, no linear of the models in `bench.families` was given anything else (2026-11-30).
        """
        return self._smallest <= x.size <= self._largest and x.dtype == self._dtype

    def let(self, rows: range) -> None:
        """Take x of so many rows from now on."""
        self._smallest, self._largest = rows.start * self._depth, (rows.stop - 1) * self._depth

    def __call__(self, x: mx.array) -> mx.array:
        """[..., N] for an x that it takes."""
        shape = x.shape
        if len(shape) > 1 and shape[-2] * self._depth == x.size:
            return self._run(x, *self._operands)
        out = self._run(x.reshape(-1, self._depth), *self._operands)
        return out.reshape(*shape[:-1], self._columns)


class SiblingProducts:
    """One product for linears that are given the same x: the first call multiplies, the others take their part.

    What is kept of a pass is gone when the last sibling has taken its part. A sibling that is called alone, or with
    another x, is right too, and multiplies for all of them. One that is called with the same array after it was changed
    in place is not: it takes its part of what the array was. Linears of which a pass does that are no `siblings`.
    """

    def __init__(self, product: KernelProduct, columns: list[int]) -> None:
        """columns: of each sibling, in the order of its rows in the product's matrix."""
        self.product = product
        self._ends = list(accumulate(columns))[:-1]
        self._held: _Held | None = None

    def part(self, number: int, x: mx.array) -> mx.array:
        """What sibling `number` makes of x, a view."""
        held = self._held
        if held is None or held.x is not x or held.parts[number] is None:
            held = self._held = _Held(x, self._split(self.product(x)))
        part = held.parts[number]
        assert part is not None
        held.parts[number] = None
        held.left -= 1
        if not held.left:
            self._held = None
        return part

    def _split(self, out: mx.array) -> list[mx.array | None]:
        return list(mx.split(out, self._ends, axis=-1))


class _Held:
    """The parts of the product of x that nobody has taken; x stays, so that no other array can have its identity."""

    __slots__ = ("left", "parts", "x")

    def __init__(self, x: mx.array, parts: list[mx.array | None]) -> None:
        self.x, self.parts, self.left = x, parts, len(parts)


class SiblingProduct:
    """The product of one of several siblings. arrays: its rows of theirs."""

    __slots__ = ("_number", "_siblings", "arrays", "takes")

    def __init__(self, siblings: SiblingProducts, number: int, arrays: Arrays) -> None:
        self._siblings, self._number, self.arrays = siblings, number, arrays
        self.takes = siblings.product.takes

    def __call__(self, x: mx.array) -> mx.array:
        return self._siblings.part(self._number, x)


class KernelLinear(nn.QuantizedLinear):  # type: ignore[misc]
    """A quantised linear that multiplies up to 32 rows by its product, as long as its three arrays are those of it."""

    _product: KernelProduct | SiblingProduct

    def __call__(self, x: mx.array) -> mx.array:
        product = self._product
        out: mx.array
        if _is_of(product, self) and product.takes(x):
            out = product(x)
            return out + self["bias"] if "bias" in self else out
        out = super().__call__(x)
        return out


class KernelEmbedding(nn.QuantizedEmbedding):  # type: ignore[misc]
    """A quantised embedding whose `as_linear`, the head of a tied model, does the same."""

    _product: KernelProduct

    def as_linear(self, x: mx.array) -> mx.array:
        product = self._product
        out: mx.array
        out = product(x) if _is_of(product, self) and product.takes(x) else super().as_linear(x)
        return out


def _is_of(product: KernelProduct | SiblingProduct, module: nn.Module) -> bool:
    weight, scales, biases = product.arrays
    return module["weight"] is weight and module["scales"] is scales and module["biases"] is biases
