"""Packed weights: what a kernel multiplies by, taken from a quantised module of mlx.nn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from kernels.qmm import BITS, DTYPES, GROUP_SIZES

ARRAYS = ("weight", "scales", "biases")


@dataclass(frozen=True)
class Kind:
    """What weights have in common that can be rows of one matrix. depth: K. dtype: of x and of the scales."""

    depth: int
    group_size: int
    bits: int
    dtype: mx.Dtype

    @classmethod
    def of(cls, module: Any) -> Kind | None:
        """None for weights that no kernel is written for: another mode, other bits or groups, several matrices."""
        weight, scales, biases = (module.get(name) for name in ARRAYS)
        if biases is None or getattr(module, "mode", "affine") != "affine":
            return None
        kind = cls(int(weight.shape[-1]) * 32 // module.bits, module.group_size, module.bits, scales.dtype)
        fits = kind.bits in BITS and kind.group_size in GROUP_SIZES and kind.dtype in DTYPES
        return kind if fits and weight.ndim == 2 and biases.dtype == scales.dtype else None


@dataclass(frozen=True)
class Packed:
    """Affine weights [N, K] as `mx.quantize` gives them, each array contiguous."""

    kind: Kind
    w: mx.array
    scales: mx.array
    biases: mx.array

    @classmethod
    def of(cls, kind: Kind, module: Any) -> Packed:
        """The weights of the module, which are contiguous from then on."""
        for name in ARRAYS:
            module[name] = mx.contiguous(module[name])  # of what is contiguous it makes no copy
        arrays = [module[name] for name in ARRAYS]
        mx.eval(arrays)
        return cls(kind, *arrays)

    @property
    def columns(self) -> int:
        """N."""
        return int(self.w.shape[0])

    @property
    def arrays(self) -> tuple[mx.array, mx.array, mx.array]:
        return self.w, self.scales, self.biases


def stacked(modules: Sequence[Any], kind: Kind) -> Packed:
    """The rows of all modules' weights in one matrix, of which the modules' own weights are views from then on.

    One kind of array after the other, so that little is held twice.
    """
    whole: list[mx.array] = []
    for name in ARRAYS:
        rows = [int(module[name].shape[0]) for module in modules]
        array = mx.concatenate([module[name] for module in modules])
        mx.eval(array)
        begin = 0
        for module, count in zip(modules, rows, strict=True):
            module[name] = array[begin : begin + count]
            begin += count
        mx.eval([module[name] for module in modules])
        whole.append(array)
    return Packed(kind, *whole)
