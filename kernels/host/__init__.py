"""Metal kernels on any host: the text that MLX would compile, executed, metered and checked."""

from kernels.host.kernel import HostKernel, metal_kernel
from kernels.host.options import RunOptions, running
from kernels.host.report import Defect, Finding, KernelDefects, Report, Traffic

__all__ = [
    "Defect",
    "Finding",
    "HostKernel",
    "KernelDefects",
    "Report",
    "RunOptions",
    "Traffic",
    "metal_kernel",
    "running",
]
