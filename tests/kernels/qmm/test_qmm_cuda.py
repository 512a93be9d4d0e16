"""How the CUDA variant spreads a product and calls its kernel. What the kernel gives, test_qmm_cuda_text.py shows."""

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from kernels.qmm import cuda
from kernels.qmm.cuda import MULTIPROCESSORS, SHARED_BYTES, TILINGS, Plan, plan, plans, product

SHAPES = [(5120, 17408), (17408, 5120), (5120, 1024), (6144, 5120), (5120, 248320), (640, 1536), (128, 40)]


def text(name: str) -> str:
    return Path(cuda.__file__).with_name(name).read_text(encoding="ascii")


@pytest.mark.parametrize(("depth", "columns"), SHAPES)
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 32])
@pytest.mark.parametrize(("group_size", "bits"), [(32, 4), (64, 4), (128, 8)])
def test_every_plan_fits_a_block_and_covers_all_of_k(
    depth: int, columns: int, rows: int, group_size: int, bits: int
) -> None:
    for expected, how in plans(rows, depth, columns, group_size, bits):
        assert expected > 0
        assert how.rows == (8 if rows <= 8 else 16 if rows <= 16 else 32)
        tiling = how.tiling
        assert tiling in TILINGS[how.rows]
        assert how.warps <= tiling.most_warps
        assert how.warps * how.split * how.phases * how.span * group_size >= depth
        own = -(-columns // (16 * tiling.tall) // -how.teams)
        # Sums of a round of tiles, twice, those of x, and with phases those of all tiles of the block; and the rings.
        taken = how.warps * (2 * tiling.round * 64 * tiling.tall * how.rows + how.span * how.rows * 4)
        taken += how.warps * tiling.stages * 16 * tiling.tall * how.span * (group_size * bits // 8 + 4)
        taken += own * 64 * tiling.tall * how.rows if how.phases > 1 else 0
        assert taken <= how.shared_bytes <= SHARED_BYTES
        # An instruction of tensor cores is for whole tiles; what a thread keeps of x is at most 64 registers.
        assert how.span * group_size * how.rows * 2 // 32 // 4 <= 64
        assert how.grid == how.teams * how.split * how.warps * 32
        # All blocks at once, unless the sums of several phases leave no room.
        assert how.teams * how.split <= MULTIPROCESSORS or how.phases > 1
        assert how.span * group_size * bits // 8 in (64, 128)


def test_plans_of_one_row_and_sixteen_are_those_worked_out_by_hand() -> None:
    # K = 5120 is 20 spans of 4 groups, one to each of 20 warps; with more rows of x a warp has room for half a span.
    assert plan(1, 5120, 17408, 64, 4) == Plan(8, TILINGS[8][0], 4, 20, 1, 1, teams=132, shared_bytes=226 * 1024)
    assert plan(16, 5120, 17408, 64, 4) == Plan(16, TILINGS[16][1], 2, 20, 2, 1, teams=66, shared_bytes=226 * 1024)
    # 5120 weight rows are 320 tiles, too few for all multiprocessors unless blocks divide K.
    how = plan(16, 17408, 5120, 64, 4)
    assert how.split > 1
    assert how.teams == MULTIPROCESSORS // how.split


def test_more_blocks_serve_a_vocabulary_whose_sums_fit_no_block() -> None:
    how = plan(32, 5120, 248320, 64, 4)
    assert how.phases > 1
    assert how.teams * how.split > MULTIPROCESSORS


def test_a_k_that_no_plan_has_room_for_is_refused() -> None:
    with pytest.raises(ValueError, match="no plan for 32 rows of a 1048576 x 64 product"):
        plan(32, 2**20, 64, 32, 8)


@pytest.mark.parametrize(("columns", "split"), [(17408, 1), (5120, 2)])
def test_the_kernel_is_called_with_the_plan(columns: int, split: int) -> None:
    made: list[dict[str, Any]] = []
    called: list[dict[str, Any]] = []

    def factory(**how: Any) -> Any:
        made.append(how)

        def kernel(**call: Any) -> list[mx.array]:
            called.append(call)
            return [mx.zeros(*each) for each in zip(call["output_shapes"], call["output_dtypes"], strict=True)]

        return kernel

    how = Plan(16, TILINGS[16][0], 4, 10, split, 3 - split, teams=132 // split, shared_bytes=115712)
    run = product(factory, lambda *_: how)
    x = mx.zeros((11, 5120), mx.bfloat16)
    w = mx.zeros((columns, 640), mx.uint32)
    scales = mx.zeros((columns, 80), mx.bfloat16)
    for _ in range(2):
        assert run(x, w, scales, scales, 64, 4).shape == (11, columns)
    assert len(made) == 1
    assert made[0]["name"] == f"qmm_{split}_10_115712"
    assert made[0]["shared_memory"] == 115712
    assert made[0]["header"].startswith(f"#define QMM_SPLIT {split}\n#define QMM_WARPS 10\n")
    assert called[1]["grid"] == (132 * 10 * 32, 1, 1)
    assert called[1]["threadgroup"] == (320, 1, 1)
    template = dict(called[1]["template"])
    assert template.pop("T") == mx.bfloat16
    assert template == {
        "ROWS": 16,
        "BITS": 4,
        "GROUP": 64,
        "SPAN": 4,
        "TALL": 1,
        "STAGES": 3,
        "ROUND": 4,
        "PHASES": 3 - split,
    }
    if split == 1:
        assert made[0]["input_names"] == ["x", "w", "scales", "biases"]
        assert called[1]["output_shapes"] == [(11, 17408)]
    else:
        arrivals = called[1]["inputs"][4]
        assert arrivals.shape == (66,)
        assert not arrivals.any().item()
        assert called[0]["inputs"][4] is not arrivals
        assert called[1]["output_shapes"] == [(11, 5120), (2 * 5120 * 16,)]
        assert called[1]["output_dtypes"] == [mx.bfloat16, mx.float32]


def test_names_of_the_header_are_spelled_with_their_namespace() -> None:
    """MLX puts the body into a namespace of its own, whose functions would hide those of the header."""
    names = re.findall(r"__forceinline__ (?:void|bool|uint32_t|uint4|float4) (\w+)\(", text("cuda_header.cu"))
    functions = set(names) - {"multiply", "load", "pair"}
    assert functions == {
        *("copy", "copy_if", "commit_copies", "await_copies", "write", "read", "load_eight", "aligned", "sum", "store"),
        *("shared", "masked_or"),
    }
    bare = [name for name in functions if re.search(rf"(?<![\w:.]){name}(?:<[^;{{]*>)?\(", text("cuda.cu"))]
    assert bare == []
