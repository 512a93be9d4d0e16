"""A kernel that doubles numbers, whose variants fail in all ways; a child finds it here by name."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import mlx.core as mx

from kernels.probing import Kernel, UnavailableError
from worker.kernel_problems import Operation

Double = Callable[[mx.array], mx.array]
Configuration = str
LARGE = 1000


def right(numbers: mx.array) -> mx.array:
    return numbers * 2


def wrong(numbers: mx.array) -> mx.array:
    return numbers + 2


def wrong_when_large(numbers: mx.array) -> mx.array:
    return numbers * (2 if numbers.size < LARGE else 2.5)


def too_wide(_: mx.array) -> mx.array:
    raise ValueError("Thread group size (512) is greater than  the maximum allowed threads per threadgroup (384).")


def raising_when_large(numbers: mx.array) -> mx.array:
    if numbers.size >= LARGE:
        raise RuntimeError("no\nmemory")
    return numbers * 2


def aborting_when_large(numbers: mx.array) -> mx.array:
    if numbers.size >= LARGE:
        print("GPU Address Fault Error", file=sys.stderr, flush=True)
        os.abort()
    return numbers * 2


def hanging(_: mx.array) -> mx.array:
    while True:
        time.sleep(60)


def absent(_: Configuration) -> Double:
    raise UnavailableError("needs an M5")


def unmakeable(_: Configuration) -> Double:
    raise FileNotFoundError("no text")


def check(run: Double, configuration: Configuration) -> str | None:
    got = run(mx.array([1.0, 3.0]))
    return None if mx.array_equal(got, mx.array([2.0, 6.0])) else f"doubled to {got.tolist()} with {configuration}"


def two_operations(_: Configuration) -> list[Operation[Double]]:
    numbers = [mx.full((LARGE,), seed) for seed in (1.0, 2.0, 4.0)]

    def doubled(run: Double) -> list[mx.array]:
        return [run(array) for array in numbers]

    def twice(run: Double) -> list[mx.array]:
        return [run(run(array)) for array in numbers]

    return [
        Operation("doubled", 3, doubled, lambda: [2 * array for array in numbers], 0.01),
        Operation("twice", 3, twice, lambda: [4 * array for array in numbers], 0.01),
    ]


KERNEL: Kernel[Configuration, Double] = Kernel(
    name="double",
    home=__name__,
    variants={
        "absent": absent,
        "unmakeable": unmakeable,
        "too wide": lambda _: too_wide,
        "wrong": lambda _: wrong,
        "wrong when large": lambda _: wrong_when_large,
        "raising when large": lambda _: raising_when_large,
        "aborting when large": lambda _: aborting_when_large,
        "hanging": lambda _: hanging,
        "right": lambda _: right,
        "right too": lambda _: right,
    },
    check=check,
    reference=right,
)
