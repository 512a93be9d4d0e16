"""Packing: how a model's weights are stored, on which the cost of a pass depends."""

from typing import Any

import mlx.core as mx


def packing(model: Any, dtype: mx.Dtype) -> str:
    """Such as "4 bit in groups of 64" or, for weights that are not quantised, "bfloat16"; mixed ones name each kind."""
    modules = [module for module in model.modules() if hasattr(module, "bits") and hasattr(module, "group_size")]
    kinds = {(int(module.bits), int(module.group_size)) for module in modules}
    if not kinds:
        return str(dtype).removeprefix("mlx.core.")
    return ", ".join(f"{bits} bit in groups of {size}" for bits, size in sorted(kinds))
