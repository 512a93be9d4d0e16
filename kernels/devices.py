"""What MLX computes on, as kernels ask for it."""

from __future__ import annotations

from typing import Literal

import mlx.core as mx

from kernels.probing import UnavailableError

Platform = Literal["Metal", "CUDA"]


def computes_on(platform: Platform) -> bool:
    """Whether MLX's default device is a GPU of this platform."""
    available = mx.metal.is_available() if platform == "Metal" else mx.cuda.is_available()
    return available and mx.default_device() == mx.gpu


def need(platform: Platform, architecture: str | None = None) -> None:
    """UnavailableError where MLX does not compute on `platform`, or on a GPU of another architecture, such as sm_90."""
    if not computes_on(platform):
        raise UnavailableError(f"MLX does not compute on {platform} here")
    if architecture is not None and gpu_architecture() != architecture:
        raise UnavailableError(f"the GPU is {gpu_architecture()}; the kernel is for {architecture}")


def gpu_architecture() -> str:
    """Of the GPU that MLX computes on, such as applegpu_g17s or sm_90."""
    return str(mx.device_info()["architecture"])
