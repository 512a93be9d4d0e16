"""What the GPU itself does in a pass over Qwen3.8-27B's shape: launches and device time by kernel, from CUPTI.

Needs torch beside MLX, whose profiler sees every launch of the process. For each number of nodes: a pass of mlx-lm over
a chain, and a tree pass with the kernels of this machine; the sums beside the pass's own time say whether the device
or the host is what a pass waits for. Then what the host spends in the dearest calls of CUDA, while it is traced:
cudaEventSynchronize is its waiting for the device, cudaDeviceSynchronize the profiler's own. `--products` traces
quantised products by themselves instead, ours and MLX's, in several plans.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx

from bench import hybrid_passes, qmm
from bench.passes import UntriedKernels, timed
from bench.report import save, table
from kernels.qmm.cuda import plans, product
from kernels.qmm.reference import Product, reference
from kernels.specialised import cuda_kernel
from worker.engine.linears import install_kernels

HEADINGS = ["pass", "nodes", "kernel or call", "launches", "us", "us each"]
PRODUCT_HEADINGS = ["K x N", "rows", "product", "launches", "device us", "wall us"]
CALLS = 20
MOST_CALLS = 8  # of CUDA, to list
SHAPES = ((5120, 34816), (17408, 5120), (6144, 5120))  # K, N: of Qwen3.8-27B, siblings fused


Sums = dict[str, tuple[int, float]]
"""By name: how often, and microseconds of all together."""


class Trace(NamedTuple):
    """kernels: on the device. calls: of CUDA, on the host. spent: the milliseconds that the work took untraced."""

    kernels: Sums
    calls: Sums
    spent: float


def traced(work: Callable[[], Any]) -> Trace:
    """Of the third time that `work` is done; the second time is what it takes."""
    from torch.profiler import ProfilerActivity, profile  # type: ignore[import-not-found, unused-ignore]

    work()
    begun = time.perf_counter()
    work()
    spent = (time.perf_counter() - begun) * 1000
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        work()
    kernels: Sums = {}
    calls: Sums = {}
    for event in recorded.events():
        if "CUDA" in str(event.device_type):
            _add(kernels, shortened(event.name), event.device_time)
        elif event.name.startswith("cu"):
            _add(calls, event.name, event.time_range.elapsed_us())
    return Trace(kernels, calls, spent)


def _add(sums: Sums, name: str, us: float) -> None:
    count, before = sums.get(name, (0, 0.0))
    sums[name] = (count + 1, before + us)


def shortened(name: str) -> str:
    """A kernel's name without its namespaces, arguments and digits of a digest."""
    name = re.sub(r"^void |mlx::core::cu::|mlx::core::|\(.*$", "", name)
    name = re.sub(r"(custom_kernel_\w+?)_[0-9a-f]{12}.*", r"\1", name)
    return name[:70]


def pass_rows(name: str, nodes: int, work: Callable[[], Any], most: int) -> list[list[Any]]:
    kernels, calls, spent = traced(work)
    launches, us = (sum(values) for values in zip(*kernels.values(), strict=True))
    rows: list[list[Any]] = [[name, nodes, f"all; the pass took {spent * 1000:.0f} us", launches, us, us / launches]]
    for sums, of_which in ((kernels, most), (calls, MOST_CALLS)):
        for kernel, (count, each) in sorted(sums.items(), key=lambda item: -item[1][1])[:of_which]:
            rows.append([name, nodes, kernel, count, each, each / count])
    return rows


def product_rows(depth: int, columns: int, rows: int, most: int) -> list[list[Any]]:
    over = qmm.weights(depth, columns, 64, 4, mx.bfloat16, CALLS)
    x = mx.random.normal((rows, depth)).astype(mx.bfloat16)
    calls: dict[str, Any] = {"MLX": reference}
    best = [how for _, how in sorted(plans(rows, depth, columns, 64, 4), key=lambda one: one[0])[:most]]
    for how in best:
        words = f"{how.warps} warps, {how.tiling}, split {how.split}, phases {how.phases}"
        calls[words] = product(cuda_kernel, partial(_always, how))
    lines = []
    for words, run in calls.items():
        trace = traced(partial(_in_turn, run, x, over))
        launches, us = (sum(values) for values in zip(*_of_products(trace.kernels), strict=True))
        shape = f"{depth} x {columns}"
        lines.append([shape, rows, words, launches / CALLS, us / CALLS, trace.spent * 1000 / CALLS])
        print(lines[-1], flush=True)
    return lines


def _of_products(kernels: Sums) -> list[tuple[int, float]]:
    return [values for name, values in kernels.items() if re.search("qmm|qmv", name)]


def _in_turn(run: Product, x: mx.array, over: list[qmm.Weights]) -> None:
    at = x
    for one in over:
        at = x + 1e-6 * run(at, *one, 64, 4)[:, :1]
    mx.eval(at)


def _always(how: Any, *_: int) -> Any:
    return how


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--most", type=int, default=14, help="kernels, or plans, to list")
    parser.add_argument("--products", action="store_true", help="trace quantised products by themselves")
    parser.add_argument("--shapes", type=qmm.shape_of, nargs="+", default=SHAPES, help="KxN, such as 5120x17408")
    parser.add_argument("--save-as", help="name of the result in bench/results")
    args = parser.parse_args()
    headings, rows = HEADINGS, []
    if args.products:
        headings = PRODUCT_HEADINGS
        for depth, columns in args.shapes:
            for nodes in args.nodes:
                rows += product_rows(depth, columns, nodes, args.most)
    else:
        shape = hybrid_passes.SHAPE
        model, kernels = hybrid_passes.random_model(shape), UntriedKernels()
        faster = hybrid_passes.twin(model, shape)
        install_kernels(faster, kernels)
        measurement = hybrid_passes.Measurement(model, faster, kernels, shape, args.context)
        for nodes in args.nodes:
            tree = measurement.random_tree(nodes)
            for name, passes in (("mlx-lm chain", measurement.chain), ("tree with kernels", measurement.kernels)):
                of_pass = pass_rows(name, nodes, partial(timed, passes, tree, None), args.most)
                print(of_pass[0], flush=True)
                rows += of_pass
    print(table(headings, rows))
    if args.save_as:
        save(args.save_as, {"headings": headings, "rows": rows})


if __name__ == "__main__":
    main()
