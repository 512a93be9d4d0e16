"""Kernel sets for tests: what stands in for MLX's operations on machines that have no kernels."""

from collections import Counter
from functools import cached_property, wraps
from typing import Any

import mlx.core as mx

from kernels.gated_delta_tree import reference as recurrence_reference
from kernels.gated_delta_tree.metal import metal_recurrence
from kernels.gated_delta_tree.problem import KEY_WIDTHS, VALUE_COLUMNS, Configuration, Recurrence
from kernels.host import metal_kernel
from kernels.qmm.metal import product as metal_product
from kernels.qmm.reference import Product
from kernels.qmm.reference import reference as product_reference
from kernels.sample.metal import metal_sample
from kernels.sample.one_threadgroup_per_row import Sample
from kernels.sample.reference import reference_sample
from kernels.tree_attention.metal import metal
from kernels.tree_attention.problem import TreeAttention
from kernels.tree_attention.reference import reference
from kernels.tree_convolution import reference as convolution_reference
from kernels.tree_convolution.call import convolution
from kernels.tree_convolution.problem import TreeConvolution
from worker.engine.kernel_set import KernelSet


class CountingKernels(KernelSet):
    """Counts what was called: "product", "attention", "outputs", "commit", "advance", "convolution" and "sample"."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def _counted(self, name: str, run: Any) -> Any:
        @wraps(run)
        def counted(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return run(*args, **options)

        return counted

    def _counted_recurrence(self, run: Recurrence) -> Recurrence:
        return Recurrence(*(self._counted(name, operation) for name, operation in run._asdict().items()))


class ReferenceKernels(CountingKernels):
    """The references of the kernels, in plain MLX operations."""

    name = "references"

    def product(self, dtype: mx.Dtype, group_size: int, bits: int) -> Product | None:
        product: Product = self._counted("product", product_reference)
        return product

    def attention(self, dtype: mx.Dtype, head_size: int) -> TreeAttention | None:
        attention: TreeAttention = self._counted("attention", reference)
        return attention

    def recurrence(self, configuration: Configuration) -> Recurrence | None:
        return self._counted_recurrence(recurrence_reference())

    def convolution(self, dtype: mx.Dtype, size: int) -> TreeConvolution | None:
        convolution: TreeConvolution = self._counted("convolution", convolution_reference)
        return convolution

    def sampler(self, dtype: mx.Dtype) -> Sample | None:
        sample: Sample = self._counted("sample", reference_sample)
        return sample


class EmulatedKernels(CountingKernels):
    """The Metal texts, executed on this machine. Slow: tiny models only."""

    name = "emulated"

    @cached_property
    def _product(self) -> Product:
        product: Product = self._counted("product", metal_product("simdgroup", metal_kernel))
        return product

    @cached_property
    def _attention(self) -> TreeAttention:
        attention: TreeAttention = self._counted("attention", metal(metal_kernel))
        return attention

    @cached_property
    def _recurrence(self) -> Recurrence:
        return self._counted_recurrence(metal_recurrence(metal_kernel))

    @cached_property
    def _convolution(self) -> TreeConvolution:
        run: TreeConvolution = self._counted("convolution", convolution(metal_kernel, "metal.metal"))
        return run

    @cached_property
    def _sampler(self) -> Sample:
        sample: Sample = self._counted("sample", metal_sample(metal_kernel))
        return sample

    def product(self, dtype: mx.Dtype, group_size: int, bits: int) -> Product | None:
        return self._product

    def attention(self, dtype: mx.Dtype, head_size: int) -> TreeAttention | None:
        return self._attention

    def recurrence(self, configuration: Configuration) -> Recurrence | None:
        fits = configuration.key_width in KEY_WIDTHS and configuration.value_width % VALUE_COLUMNS == 0
        return self._recurrence if fits else None

    def convolution(self, dtype: mx.Dtype, size: int) -> TreeConvolution | None:
        return self._convolution

    def sampler(self, dtype: mx.Dtype) -> Sample | None:
        return self._sampler
