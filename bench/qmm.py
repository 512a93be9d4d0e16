"""What rows beyond one cost in a quantised matmul: ours beside mx.quantized_matmul, in one run, on MLX's GPU.

Each time is that of one call among many over different weights, evaluated together, so that launches overlap and no
cache holds the weights: once with every call independent of the others, once with each one's x waiting for the result
before it, as in a model. The error is the largest, against float64, in roundings of the output's type. `--plans` times
other plans of the CUDA kernel instead. Exits with 1 when a product is wrong.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from bench.report import save, table
from kernels.devices import computes_on
from kernels.qmm.cuda import Plan, Planner, plans, product
from kernels.qmm.reference import Product, reference
from kernels.specialised import cuda_kernel

SHAPES = ((5120, 17408), (17408, 5120), (5120, 5120), (5120, 1024))  # K, N: of Qwen3.8-27B
ROWS = (1, 2, 4, 8, 16, 32)
PLANNED_ROWS = (1, 16)
PLANS = 5
CHECKED_COLUMNS = 512
ROUNDOFF = {mx.bfloat16: 2.0**-8, mx.float16: 2.0**-11}
MOST_ROUNDINGS = 2.0
MOST_ROUNDINGS_OF_MLX = 20.0  # it rounds each weight and, on a CPU, each partial sum
HEADINGS = ["K x N", "rows", "us", "us in turn", "MLX us", "MLX us in turn", "GB/s", "x one row", "error", "MLX error"]
Weights = tuple[mx.array, mx.array, mx.array]


def weights(depth: int, columns: int, group_size: int, bits: int, dtype: mx.Dtype, copies: int) -> list[Weights]:
    """Random ones, as `mx.quantize` packs them; their values are spread about zero."""
    middle = (2**bits - 1) / 2

    def one() -> Weights:
        scales = mx.random.uniform(0.001, 0.01, (columns, depth // group_size)).astype(dtype)
        low, high = (mx.random.randint(0, 2**16, (columns, depth * bits // 32), dtype=mx.uint32) for _ in range(2))
        return high << 16 | low, scales, (-middle * scales).astype(dtype)

    made = [one() for _ in range(copies)]
    mx.eval(made)
    return made


def error(got: mx.array, x: mx.array, operands: Weights, group_size: int, bits: int) -> float:
    """The largest over some columns, in roundings of a value as large as the product and its root mean square."""
    columns = np.random.default_rng(0).choice(got.shape[1], min(CHECKED_COLUMNS, got.shape[1]), replace=False)
    w, scales, biases = (np.array(array[mx.array(columns)].astype(kind)) for array, kind in _kinds(operands))
    digits = (w[:, :, None] >> np.arange(0, 32, bits, dtype=np.uint32)) & np.uint32(2**bits - 1)
    groups = digits.reshape(len(columns), -1, group_size).astype(np.float64)
    values = (groups * scales[:, :, None] + biases[:, :, None]).reshape(len(columns), -1)
    exact = np.array(x.astype(mx.float32)).astype(np.float64) @ values.T
    off = np.abs(np.array(got.astype(mx.float32))[:, columns] - exact)
    typical = np.sqrt((exact**2).mean())
    return float((off / (ROUNDOFF[got.dtype] * (np.abs(exact) + typical))).max())


def _kinds(operands: Weights) -> Iterator[tuple[mx.array, mx.Dtype]]:
    return zip(operands, (mx.uint32, mx.float32, mx.float32), strict=True)


def microseconds(call: Callable[[mx.array, Weights], mx.array], x: mx.array, over: list[Weights], turns: int) -> float:
    """Of one call of many that are evaluated together: the median of `turns`."""
    mx.eval([call(x, one) for one in over])
    times = []
    for _ in range(turns):
        begun = time.perf_counter()
        mx.eval([call(x, one) for one in over])
        times.append((time.perf_counter() - begun) / len(over) * 1e6)
    return statistics.median(times)


def microseconds_in_turn(
    call: Callable[[mx.array, Weights], mx.array], x: mx.array, over: list[Weights], turns: int
) -> float:
    """As `microseconds`, but no call can begin before the one before it has ended (an addition stands between)."""

    def chain() -> mx.array:
        at = x
        for one in over:
            at = x + 1e-6 * call(at, one)[:, :1]
        return at

    mx.eval(chain())
    times = []
    for _ in range(turns):
        begun = time.perf_counter()
        mx.eval(chain())
        times.append((time.perf_counter() - begun) / len(over) * 1e6)
    return statistics.median(times)


def read_bytes(depth: int, columns: int, group_size: int, bits: int) -> int:
    """The bytes of w, scales and biases."""
    return columns * (depth * bits // 8 + 4 * (depth // group_size))


def compared(args: argparse.Namespace, dtype: mx.Dtype) -> list[list[Any]]:
    rows = []
    ours = product(cuda_kernel)
    for depth, columns in args.shapes:
        over = weights(depth, columns, args.group_size, args.bits, dtype, args.calls)
        first = 0.0
        for count in args.rows:
            x = mx.random.normal((count, depth)).astype(dtype)
            calls = [partial(_called, run, args.group_size, args.bits) for run in (ours, reference)]
            us, stock = (microseconds(call, x, over, args.turns) for call in calls)
            us_in_turn, stock_in_turn = (microseconds_in_turn(call, x, over, args.turns) for call in calls)
            errors = [error(call(x, over[0]), x, over[0], args.group_size, args.bits) for call in calls]
            first = first or us_in_turn
            rate = read_bytes(depth, columns, args.group_size, args.bits) / us / 1e3
            shape = f"{depth} x {columns}"
            rows.append([shape, count, us, us_in_turn, stock, stock_in_turn, rate, us_in_turn / first, *errors])
            print(table(HEADINGS, rows[-1:]).splitlines()[-1], flush=True)
    return rows


def planned(args: argparse.Namespace, dtype: mx.Dtype) -> list[list[Any]]:
    """Times of other plans, in turn, by shape and rows."""
    rows = []
    for depth, columns in args.shapes:
        over = weights(depth, columns, args.group_size, args.bits, dtype, args.calls)
        for count in PLANNED_ROWS:
            x = mx.random.normal((count, depth)).astype(dtype)
            for expected, how in _plans(count, depth, columns, args.group_size, args.bits):
                call = partial(_called, product(cuda_kernel, _always(how)), args.group_size, args.bits)
                us = microseconds_in_turn(call, x, over, args.turns)
                wrong = error(call(x, over[0]), x, over[0], args.group_size, args.bits)
                kind = [how.warps, how.tiling.tall, how.split, how.phases, how.teams]
                rows.append([f"{depth} x {columns}", count, *kind, expected, us, wrong])
                print(rows[-1], flush=True)
    return rows


def _plans(rows: int, depth: int, columns: int, group_size: int, bits: int) -> list[tuple[float, Plan]]:
    """The most promising plans."""
    return sorted(plans(rows, depth, columns, group_size, bits), key=lambda one: one[0])[:PLANS]


def _always(how: Plan) -> Planner:
    return lambda *_: how


def _called(run: Product, group_size: int, bits: int, x: mx.array, operands: Weights) -> mx.array:
    return run(x, *operands, group_size, bits)


def checked_reference(dtype: mx.Dtype, group_size: int, bits: int) -> float:
    """The error of mx.quantized_matmul on a tiny problem."""
    operands = weights(4 * group_size, 24, group_size, bits, dtype, 1)[0]
    x = mx.random.normal((3, 4 * group_size)).astype(dtype)
    return error(reference(x, *operands, group_size, bits), x, operands, group_size, bits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8))
    parser.add_argument("--group-size", type=int, default=64, choices=(32, 64, 128))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--shapes", type=shape_of, nargs="+", default=SHAPES, help="KxN, such as 5120x17408")
    parser.add_argument("--calls", type=int, default=50, help="calls, each over weights of its own, to an evaluation")
    parser.add_argument("--turns", type=int, default=7, help="evaluations, of which the median counts")
    parser.add_argument("--plans", action="store_true", help="time other plans of the CUDA kernel instead")
    parser.add_argument("--save-as", help="name of the result in bench/results")
    args = parser.parse_args()
    dtype: mx.Dtype = getattr(mx, args.dtype)
    mx.random.seed(0)
    if not computes_on("CUDA"):
        off = checked_reference(dtype, args.group_size, args.bits)
        print(f"MLX has no CUDA GPU here: nothing to time. mx.quantized_matmul is off by {off:.2f} roundings.")
        sys.exit(not off <= MOST_ROUNDINGS_OF_MLX)
    if args.plans:
        headings = [
            "K x N",
            "rows",
            "warps",
            "split",
            "phases",
            "teams",
            "stages",
            "expected us",
            "us in turn",
            "error",
        ]
        rows = planned(args, dtype)
        wrong = max(row[-1] for row in rows)
    else:
        headings, rows = HEADINGS, compared(args, dtype)
        wrong = max(row[-2] for row in rows)
    print(table(headings, rows), flush=True)
    if args.save_as:
        options = {"bits": args.bits, "group_size": args.group_size, "dtype": args.dtype, "calls": args.calls}
        save(args.save_as, {"options": options, "headings": headings, "rows": rows})
    sys.exit(not wrong <= MOST_ROUNDINGS)


def shape_of(text: str) -> tuple[int, int]:
    depth, columns = text.split("x")
    return int(depth), int(columns)


if __name__ == "__main__":
    main()
