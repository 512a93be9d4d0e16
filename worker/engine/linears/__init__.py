"""The quantised linears of a model in memory, multiplied by a kernel where x has up to 32 rows."""

from worker.engine.linears.install import Installed, install_kernels

__all__ = ["Installed", "install_kernels"]
