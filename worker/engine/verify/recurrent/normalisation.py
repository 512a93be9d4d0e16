"""Queries and keys of the gated delta rule, normed in one operation each; mlx-lm multiplies them by a number after it.

With kernels in use only: the factor is rounded together with the norm then, instead of after it.
"""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
from mlx_lm.models.gated_delta import normalize_qk

NAME = normalize_qk.__name__


def normalised(q: mx.array, k: mx.array, *, inv_scale: float, eps: float) -> tuple[mx.array, mx.array]:
    """What mlx-lm's `normalize_qk` returns."""
    rms_eps = eps * inv_scale**2
    of_q, of_k = (_weights(q.shape[-1], factor, q.dtype) for factor in (inv_scale**2, inv_scale))
    return mx.fast.rms_norm(q, of_q, rms_eps), mx.fast.rms_norm(k, of_k, rms_eps)


@lru_cache(maxsize=16)  # all layers have the same
def _weights(width: int, factor: float, dtype: mx.Dtype) -> mx.array:
    return mx.array([factor] * width, dtype=dtype)
