"""How the CUDA variant spreads a product and calls its kernel. That it multiplies right, a GPU has to show."""

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from kernels.qmm import cuda
from kernels.qmm.cuda import RESIDENT_CLUSTERS, SHARED_BYTES, Plan, Tiling, plan, product

SHAPES = [(5120, 17408), (17408, 5120), (5120, 1024), (6144, 5120), (5120, 248320), (640, 1536), (128, 40)]


def text(name: str) -> str:
    return Path(cuda.__file__).with_name(name).read_text(encoding="ascii")


@pytest.mark.parametrize(("depth", "columns"), SHAPES)
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 32])
@pytest.mark.parametrize(("group_size", "bits"), [(32, 4), (64, 4), (128, 8)])
def test_a_plan_fits_a_multiprocessor_and_gives_every_slice_a_step(
    depth: int, columns: int, rows: int, group_size: int, bits: int
) -> None:
    how = plan(rows, depth, columns, group_size, bits)
    assert how.rows == (8 if rows <= 8 else 16 if rows <= 16 else 32)
    assert how.shared_bytes <= SHARED_BYTES
    assert how.split * how.phases * 128 * 8 < depth * bits + 128 * 8  # a step is 128 bytes of a row
    assert how.clusters % RESIDENT_CLUSTERS[how.split] == 0


def test_one_row_of_a_wide_product_takes_the_shared_memory_counted_by_hand() -> None:
    # K = 5120 is 20 steps of 4 groups, 5 steps to each block of a cluster of 4. 17408 rows are 1088 tiles, 37 at most
    # to one of 30 clusters. x: 1280 * 8 * 2; its sums: 20 * 8 * 4; accumulators of 37 tiles and 8 warps: 16 * 8 * 4
    # each; rings: 8 warps * 4 stages * 16 rows * 128; scales and biases: 2 * 37 * 16 * 20 * 2; the warps' tiles: 8 * 4.
    taken = 20480 + 640 + 45 * 512 + 65536 + 47360 + 32
    how = plan(1, 5120, 17408, 64, 4)
    assert how == Plan(8, Tiling(8, 1, 4), split=4, phases=1, clusters=30, shared_bytes=SHARED_BYTES)
    assert 113 * 1024 < taken <= SHARED_BYTES
    smaller = plan(1, 5120, 1024, 64, 4)  # 3 tiles at most
    assert 20480 + 640 + 11 * 512 + 65536 + 3 * 16 * 20 * 4 + 32 <= smaller.shared_bytes == 113 * 1024


def test_more_waves_serve_a_vocabulary_whose_sums_fit_no_block() -> None:
    how = plan(16, 5120, 248320, 64, 4)
    assert how.clusters > RESIDENT_CLUSTERS[how.split]


def test_the_kernel_is_called_with_the_plan() -> None:
    made: list[dict[str, Any]] = []
    called: list[dict[str, Any]] = []

    def factory(**how: Any) -> Any:
        made.append(how)

        def kernel(**call: Any) -> list[mx.array]:
            called.append(call)
            return [mx.zeros(call["output_shapes"][0], call["output_dtypes"][0])]

        return kernel

    run = product(factory)
    x = mx.zeros((3, 5120), mx.bfloat16)
    w = mx.zeros((1024, 640), mx.uint32)
    scales = mx.zeros((1024, 80), mx.bfloat16)
    for _ in range(2):
        assert run(x, w, scales, scales, 64, 4).shape == (3, 1024)
    assert len(made) == 1
    assert made[0]["name"].startswith("qmm_4_8_115712_")
    assert made[0]["shared_memory"] == 115712
    assert made[0]["header"].startswith("#define QMM_SPLIT 4\n#define QMM_WARPS 8\n")
    assert called[1]["grid"] == (30 * 4 * 8 * 32, 1, 1)
    assert called[1]["threadgroup"] == (256, 1, 1)
    template = dict(called[1]["template"])
    assert template.pop("T") == mx.bfloat16
    assert template == {
        "ROWS": 8,
        "BITS": 4,
        "GROUP": 64,
        "TALL": 1,
        "STAGES": 4,
        "WARPS": 8,
        "SPLIT": 4,
        "PHASES": 1,
    }


def test_names_of_the_header_are_spelled_with_their_namespace() -> None:
    """MLX puts the body into a namespace of its own, whose functions would hide those of the header."""
    names = re.findall(
        r"__forceinline__ (?:void|int|float4) (\w+)\(", text("cuda_header.cu").split("struct Element")[-1]
    )
    functions = set(names) - {"multiply", "load"}
    assert {
        "copy_once",
        "copy",
        "commit_copies",
        "await_copies",
        "cluster_size",
        "cluster_barrier",
        "distant",
        "sum",
    } == (functions)
    bare = [name for name in functions if re.search(rf"(?<![\w:.]){name}(?:<[^;{{]*>)?\(", text("cuda.cu"))]
    assert bare == []
