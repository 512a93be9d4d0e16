"""Queries and keys of the gated delta rule, normed in one operation each; mlx-lm multiplies them by a number after it.

With kernels in use only: the factor is rounded together with the norm then, instead of after it. A kernel that norms
them itself takes them as they were before, and then nobody computes the norm here.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import mlx.core as mx
from mlx_lm.models.gated_delta import normalize_qk

from kernels.gated_delta_tree.problem import NORM_EPS

NAME = normalize_qk.__name__

Pair = tuple[mx.array, mx.array]

_latest = threading.local()


def normalised(q: mx.array, k: mx.array, *, inv_scale: float, eps: float) -> Pair:
    """What mlx-lm's `normalize_qk` returns."""
    rms_eps = eps * inv_scale**2
    of_q, of_k = (_weights(q.shape[-1], factor, q.dtype) for factor in (inv_scale**2, inv_scale))
    normed = mx.fast.rms_norm(q, of_q, rms_eps), mx.fast.rms_norm(k, of_k, rms_eps)
    usual = inv_scale == q.shape[-1] ** -0.5 and eps == NORM_EPS
    _latest.norm = (normed, (q, k)) if usual else None
    return normed


def before_norm(q: mx.array, k: mx.array) -> Pair | None:
    """What this thread's last call of `normalised` has made q and k of, by the norm that kernels have; else None.

    An array that a model changes in place after the norm would not be told apart. None of mlx-lm's does that.
    """
    norm: tuple[Pair, Pair] | None = getattr(_latest, "norm", None)
    forget_norm()
    if norm is None:
        return None
    normed, raw = norm
    return raw if normed[0] is q and normed[1] is k else None


def forget_norm() -> None:
    """Keep nothing of it alive."""
    _latest.norm = None


@lru_cache(maxsize=16)  # all layers have the same
def _weights(width: int, factor: float, dtype: mx.Dtype) -> mx.array:
    return mx.array([factor] * width, dtype=dtype)
