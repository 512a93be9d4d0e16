"""The kernels that stand in for MLX's own operations in a verification pass: one adapter for all of them."""

from __future__ import annotations

from typing import TypeVar

import mlx.core as mx

from kernels import gated_delta_tree, qmm, sample, tree_attention
from kernels.gated_delta_tree.problem import Configuration, Recurrence
from kernels.probing import Choice
from kernels.qmm.reference import Product
from kernels.sample.one_threadgroup_per_row import Sample
from kernels.tree_attention.problem import TreeAttention

REFERENCE = "reference"

Run = TypeVar("Run")


class KernelSet:
    """What stands in for MLX's own operations on up to 32 rows; this one has nothing.

    Each method returns None where MLX's own operations are used.
    """

    name = "stock"

    def product(self, dtype: mx.Dtype, group_size: int, bits: int) -> Product | None:
        """For x of `dtype` and affine weights."""
        return None

    def attention(self, dtype: mx.Dtype, head_size: int) -> TreeAttention | None:
        return None

    def recurrence(self, configuration: Configuration) -> Recurrence | None:
        return None

    def sampler(self, dtype: mx.Dtype) -> Sample | None:
        """For logits of `dtype`."""
        return None


STOCK = KernelSet()


class MachineKernels(KernelSet):
    """The kernels that ran, and agreed with their references, on this machine's default device."""

    name = "machine"

    def product(self, dtype: mx.Dtype, group_size: int, bits: int) -> Product | None:
        return _used(qmm.chosen(dtype, group_size=group_size, bits=bits))

    def attention(self, dtype: mx.Dtype, head_size: int) -> TreeAttention | None:
        return _used(tree_attention.chosen(dtype, head_size))

    def recurrence(self, configuration: Configuration) -> Recurrence | None:
        return _used(gated_delta_tree.chosen(configuration))

    def sampler(self, dtype: mx.Dtype) -> Sample | None:
        return _used(sample.chosen(dtype))


def _used(choice: Choice[Run]) -> Run | None:
    return None if choice.name == REFERENCE else choice.run
