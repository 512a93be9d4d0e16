"""Which variant this machine runs for widths and types."""

from __future__ import annotations

from pathlib import Path

from kernels import probing
from kernels.devices import need
from kernels.gated_delta_tree.cuda import cuda_recurrence
from kernels.gated_delta_tree.metal import metal_recurrence
from kernels.gated_delta_tree.probe import complaint
from kernels.gated_delta_tree.problem import KEY_WIDTHS, VALUE_COLUMNS, Configuration, Recurrence
from kernels.gated_delta_tree.reference import reference
from kernels.probing import Choice, Kernel, UnavailableError
from kernels.specialised import cuda_kernel, metal_kernel


def chosen(problem: Configuration, folder: Path | None = None) -> Choice[Recurrence]:
    """Found out at the first call in a process. folder: keeps verdicts from one process to the next."""
    return probing.chosen(KERNEL, problem, folder)


def _metal(problem: Configuration) -> Recurrence:
    need("Metal")
    _need_widths(problem)
    return metal_recurrence(metal_kernel)


def _cuda(problem: Configuration) -> Recurrence:
    need("CUDA")
    _need_widths(problem)
    return cuda_recurrence(cuda_kernel)


def _need_widths(problem: Configuration) -> None:
    if problem.key_width not in KEY_WIDTHS:
        raise UnavailableError(f"keys are {problem.key_width} wide; the kernel has {KEY_WIDTHS}")
    if problem.value_width % VALUE_COLUMNS:
        raise UnavailableError(f"values are {problem.value_width} wide; the kernel needs a multiple of {VALUE_COLUMNS}")


KERNEL: Kernel[Configuration, Recurrence] = Kernel(
    name="gated_delta_tree",
    home=__name__,
    variants={"metal": _metal, "cuda": _cuda},
    check=complaint,
    reference=reference(),
)
