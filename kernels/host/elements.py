"""Element types: what MLX calls them, what Metal calls them, and the numpy type that carries their bits."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

# MLX's names in generated Metal text (get_type_string in mlx/backend/common/compiled.cpp).
METAL_NAMES: dict[mx.Dtype, str] = {
    mx.bool_: "bool",
    mx.uint8: "uint8_t",
    mx.uint16: "uint16_t",
    mx.uint32: "uint32_t",
    mx.uint64: "uint64_t",
    mx.int8: "int8_t",
    mx.int16: "int16_t",
    mx.int32: "int32_t",
    mx.int64: "int64_t",
    mx.float16: "float16_t",
    mx.bfloat16: "bfloat16_t",
    mx.float32: "float",
    mx.complex64: "complex64_t",
}

_CARRIERS: dict[mx.Dtype, type[np.generic]] = {
    mx.bool_: np.bool_,
    mx.uint8: np.uint8,
    mx.uint16: np.uint16,
    mx.uint32: np.uint32,
    mx.uint64: np.uint64,
    mx.int8: np.int8,
    mx.int16: np.int16,
    mx.int32: np.int32,
    mx.int64: np.int64,
    mx.float16: np.float16,
    mx.bfloat16: np.uint16,
    mx.float32: np.float32,
    mx.complex64: np.complex64,
}


def metal_name(dtype: mx.Dtype) -> str:
    """The Metal type of a dtype; ValueError for one that Metal lacks (float64)."""
    if dtype not in METAL_NAMES:
        raise ValueError(f"Metal has no type for {dtype}; use one of {', '.join(str(known) for known in METAL_NAMES)}")
    return METAL_NAMES[dtype]


def carrier(dtype: mx.Dtype) -> np.dtype[np.generic]:
    """The numpy type of the same size; bfloat16 travels as its bits in uint16."""
    return np.dtype(_CARRIERS[dtype])


def as_numpy(array: mx.array) -> NDArray[np.generic]:
    """The array's bits as numpy, in the array's own strides where MLX exposes them."""
    mx.eval(array)
    exposed = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    mx.eval(exposed)
    return np.array(exposed, copy=None)


def as_mlx(bits: NDArray[np.generic], dtype: mx.Dtype) -> mx.array:
    """The MLX array that has these bits."""
    array = mx.array(bits)
    return array.view(mx.bfloat16) if dtype == mx.bfloat16 else array
