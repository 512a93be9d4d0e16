"""A kernel whose variants do all that a kernel can do to its process; a child finds it here by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from kernels.probing import Kernel, UnavailableError

Double = Callable[[int], int]

VICTIM = "Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)."


class Configuration(NamedTuple):
    """log: a file that every check adds its process to."""

    dtype: mx.Dtype
    number: int
    log: Path


def right(number: int) -> int:
    return 2 * number


def wrong(number: int) -> int:
    return number + 2


def raising(number: int) -> int:
    raise RuntimeError(f"no pipeline\n  for {number}")


def too_wide(number: int) -> int:
    raise ValueError("Thread group size (512) is greater than  the maximum allowed threads per threadgroup (384).")


def aborting(number: int) -> int:
    print("it will be", file=sys.stderr)
    print(f"the GPU fell over {number}\n", file=sys.stderr, flush=True)
    os.abort()


def leaving(number: int) -> int:
    os._exit(number)


def without_memory(number: int) -> int:
    raise MemoryError("std::bad_alloc")


def without_device_memory(number: int) -> int:
    raise RuntimeError("[metal::malloc] Unable to allocate 4096 bytes.")


def aborting_without_memory(number: int) -> int:
    print("[METAL] Command buffer execution failed: Insufficient Memory (00000008)", file=sys.stderr, flush=True)
    os.abort()


def beside_a_fault(number: int) -> int:
    raise RuntimeError(f"[METAL] Command buffer execution failed: {VICTIM}")


def without_a_library(number: int) -> int:
    raise ImportError("libcuda.so.1: cannot open shared object file")


def hanging(number: int) -> int:
    while True:
        time.sleep(60)


def told_to_end(number: int) -> int:
    os.kill(os.getpid(), signal.SIGTERM)
    return hanging(number)


def absent(_: Configuration) -> Double:
    raise UnavailableError("needs an M5")


def unmakeable(_: Configuration) -> Double:
    raise ValueError("no such\ninput")


def unmakeable_elsewhere(configuration: Configuration) -> Double:
    if os.getppid() == int(configuration.log.stem):
        raise UnavailableError("only the parent has a GPU")
    return right


def check(run: Double, configuration: Configuration) -> str | None:
    with configuration.log.open("a") as log:
        log.write(f"{os.getpid()}\n")
    assert configuration.dtype == mx.bfloat16
    got = run(configuration.number)
    return None if got == 2 * configuration.number else f"{configuration.number} doubled is {got}"


PASSING_FAILURES = {
    "without memory": lambda _: without_memory,
    "without device memory": lambda _: without_device_memory,
    "aborting without memory": lambda _: aborting_without_memory,
    "beside a fault": lambda _: beside_a_fault,
    "without a library": lambda _: without_a_library,
    "told to end": lambda _: told_to_end,
}

KERNEL: Kernel[Configuration, Double] = Kernel(
    name="double",
    home=__name__,
    variants={
        "absent": absent,
        "unmakeable": unmakeable,
        "raising": lambda _: raising,
        "too wide": lambda _: too_wide,
        "aborting": lambda _: aborting,
        "leaving": lambda _: leaving,
        "hanging": lambda _: hanging,
        **PASSING_FAILURES,
        "unmakeable elsewhere": unmakeable_elsewhere,
        "wrong": lambda _: wrong,
        "right": lambda _: right,
        "never looked at": absent,
    },
    check=check,
    reference=right,
)
