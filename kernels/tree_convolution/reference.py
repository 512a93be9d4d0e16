"""The convolution in plain MLX operations."""

from __future__ import annotations

import mlx.core as mx


def reference(x: mx.array, weight: mx.array, windows: mx.array, bias: mx.array | None = None) -> mx.array:
    """y[n, c] = bias[c] + sum over k of weight[c, k] x[windows[n, k], c]; arguments as of `TreeConvolution`."""
    seen = mx.take(x[0].astype(mx.float32), windows, axis=0)
    y = (seen * weight[..., 0].astype(mx.float32).T).sum(axis=1)
    if bias is not None:
        y = y + bias.astype(mx.float32)
    return y[None].astype(x.dtype)
