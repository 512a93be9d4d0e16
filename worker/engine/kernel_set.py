"""The kernels that stand in for MLX's own operations in a verification pass: one adapter for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx

from kernels import gated_delta_tree, qmm, sample, tree_attention, tree_convolution
from kernels.devices import computes_on
from kernels.gated_delta_tree.problem import Configuration, Recurrence
from kernels.probing import REFERENCE, Choice
from kernels.qmm import shapes
from kernels.qmm.reference import Product
from kernels.qmm.shapes import Matrix
from kernels.sample.one_threadgroup_per_row import Sample
from kernels.texts import texts_digest
from kernels.tree_attention.problem import TreeAttention
from kernels.tree_convolution.problem import TreeConvolution
from kernels.words import excerpt

KERNELS = ("qmm", "tree_attention", "gated_delta_tree", "tree_convolution", "sample")
"""The packages of `kernels`, in the order in which names have them."""

Run = TypeVar("Run")


class KernelSet:
    """What stands in for MLX's own operations on up to 32 rows; this one has nothing.

    Each method returns None where MLX's own operations are used.
    """

    fuses_siblings = True
    """Whether linears that are given the same x become one product, see `linears`."""

    @property
    def name(self) -> str:
        """ "stock", or what is in use, such as "qmm:tensor tree_attention:metal sample:metal"."""
        return "stock"

    @property
    def key(self) -> dict[str, str]:
        """What belongs to the key of all that is measured or learned with these kernels."""
        return {"kernels": self.name}

    def product(self, dtype: mx.Dtype, group_size: int, bits: int) -> Product | None:
        """For x of `dtype` and affine weights."""
        return None

    def refused_matrices(self, matrices: Collection[Matrix]) -> set[Matrix]:
        """Those of the matrices that `product` must not multiply by in this process, not even to try it."""
        return set()

    def forgo_product(self, dtype: mx.Dtype, group_size: int, bits: int) -> None:
        """Be told that nothing multiplies by what `product` gave: it multiplies no matrix of the model rightly."""

    def attention(self, dtype: mx.Dtype, head_size: int) -> TreeAttention | None:
        return None

    def recurrence(self, configuration: Configuration) -> Recurrence | None:
        return None

    def convolution(self, dtype: mx.Dtype, size: int) -> TreeConvolution | None:
        """For rows and weights of `dtype`, and kernels of `size` rows."""
        return None

    def sampler(self, dtype: mx.Dtype) -> Sample | None:
        """For logits of `dtype`."""
        return None


STOCK = KernelSet()


class MachineKernels(KernelSet):
    """The kernels that ran, and agreed with their references, on this machine's default device.

    One object belongs to one loaded model: it is named after what it was asked for until the name was first read.
    """

    def __init__(
        self,
        folder: Path | None = None,
        notify: Callable[[str], None] = lambda _: None,
        fuses_siblings: bool = True,
    ) -> None:
        """folder: keeps what came of trying each variant. notify: told of variants that ought to run and do not."""
        self._folder, self._notify = folder, notify
        self.fuses_siblings = fuses_siblings
        self._in_use: dict[tuple[str, object], str] = {}  # variants, by kernel and configuration
        self._told: set[str] = set()
        self._answers: dict[tuple[str, object], Any] = {}  # layers of a pass ask again and again

    @cached_property
    def name(self) -> str:
        used: dict[str, set[str]] = {}
        for (kernel, _), variant in self._in_use.items():
            used.setdefault(kernel, set()).add(variant)
        return (
            " ".join(f"{kernel}:{','.join(sorted(used[kernel]))}" for kernel in KERNELS if kernel in used) or STOCK.name
        )

    @cached_property
    def key(self) -> dict[str, str]:
        """With another text of a kernel in use, another key."""
        if self.name == STOCK.name:
            return STOCK.key
        used = [part.partition(":")[0] for part in self.name.split()]
        return {"kernels": self.name, "kernel_texts": texts_digest(*(f"kernels.{kernel}" for kernel in used))}

    def product(self, dtype: mx.Dtype, group_size: int, bits: int) -> Product | None:
        return self._answer(
            "qmm",
            (dtype, group_size, bits),
            lambda: qmm.chosen(dtype, group_size=group_size, bits=bits, folder=self._folder),
        )

    def refused_matrices(self, matrices: Collection[Matrix]) -> set[Matrix]:
        """The matrices that it went wrong with in a child process, where a fault of the device harms nobody."""
        chosen = {
            matrix: self._in_use[variant] for matrix in matrices if (variant := _product_of(matrix)) in self._in_use
        }
        found = shapes.complaints(chosen, self._folder)
        for matrix, complaint in found.items():
            words = f"{chosen[matrix]}, multiplies no weights [{matrix.columns}, {matrix.depth}]"
            self._tell(f"kernel qmm, variant {words} on this machine: {excerpt(complaint)}")
        return set(found)

    def forgo_product(self, dtype: mx.Dtype, group_size: int, bits: int) -> None:
        asked = ("qmm", (dtype, group_size, bits))
        self._answers[asked] = None
        self._in_use.pop(asked, None)

    def attention(self, dtype: mx.Dtype, head_size: int) -> TreeAttention | None:
        return self._answer(
            "tree_attention", (dtype, head_size), lambda: tree_attention.chosen(dtype, head_size, self._folder)
        )

    def recurrence(self, configuration: Configuration) -> Recurrence | None:
        return self._answer(
            "gated_delta_tree", configuration, lambda: gated_delta_tree.chosen(configuration, self._folder)
        )

    def convolution(self, dtype: mx.Dtype, size: int) -> TreeConvolution | None:
        configuration = tree_convolution.Configuration(dtype, size)
        return self._answer(
            "tree_convolution", configuration, lambda: tree_convolution.chosen(configuration, self._folder)
        )

    def sampler(self, dtype: mx.Dtype) -> Sample | None:
        return self._answer("sample", dtype, lambda: sample.chosen(dtype, self._folder))

    def _answer(self, kernel: str, configuration: object, choose: Callable[[], Choice[Run]]) -> Run | None:
        asked = (kernel, configuration)
        if asked not in self._answers:
            self._answers[asked] = self._used(asked, choose())
        run: Run | None = self._answers[asked]
        return run

    def _used(self, asked: tuple[str, object], choice: Choice[Run]) -> Run | None:
        for name in choice.failed:
            self._tell(
                f"kernel {asked[0]}, variant {name}, is not used on this machine: {excerpt(choice.refused[name])}"
            )
        if choice.name == REFERENCE:
            return None
        self._in_use[asked] = choice.name
        return choice.run

    def _tell(self, failure: str) -> None:
        if failure not in self._told:
            self._told.add(failure)
            self._notify(f"{failure} (cidermill doctor --kernels tries it again)")


def _product_of(matrix: Matrix) -> tuple[str, object]:
    return "qmm", (matrix.dtype, matrix.group_size, matrix.bits)


def has_kernels() -> bool:
    """Whether MLX computes on a GPU that kernels are written for."""
    return computes_on("Metal") or computes_on("CUDA")


def verdicts_folder(data_dir: Path) -> Path:
    """Where a data directory keeps what came of trying each variant."""
    return data_dir / "kernels"


def machine_kernels(
    folder: Path | None = None, notify: Callable[[str], None] = lambda _: None, fuses_siblings: bool = True
) -> KernelSet:
    """The set of this machine, for one model; STOCK where MLX computes on a CPU. Arguments: of `MachineKernels`."""
    return MachineKernels(folder, notify, fuses_siblings) if has_kernels() else STOCK
