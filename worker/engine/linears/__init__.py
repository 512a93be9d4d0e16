"""The quantised linears of a model in memory, multiplied by a kernel where x has up to 32 rows."""

from worker.engine.linears.install import Installed, install_kernels
from worker.engine.linears.products import ALL_ROWS, NO_ROWS

__all__ = ["ALL_ROWS", "NO_ROWS", "Installed", "install_kernels"]
