"""A depthwise causal convolution over a draft tree: every node sees the rows of its own path.

Formula: `reference`. What a thread does, and bytes: `metal.metal`.
"""

from __future__ import annotations

from kernels.tree_convolution.choice import KERNEL, chosen
from kernels.tree_convolution.problem import DTYPES, USUAL_SIZE, Configuration
from kernels.tree_convolution.reference import reference

__all__ = ["DTYPES", "KERNEL", "USUAL_SIZE", "Configuration", "chosen", "reference"]
