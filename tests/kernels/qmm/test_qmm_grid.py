"""Every Metal text that the variants compile to: types, bits, groups and numbers of row blocks, against float64."""

import mlx.core as mx
import pytest
from qmm_problems import Problem, assert_one_rounding

from kernels.host import RunOptions, metal_kernel, running
from kernels.qmm import BITS, DTYPES, GROUP_SIZES
from kernels.qmm.metal import Name, product

# Of each number of row blocks one, ragged and whole in turn.
ROWS: dict[Name, tuple[int, ...]] = {"simdgroup": (5, 16, 19, 32), "tensor": (7, 32)}
OPTIONS = (
    RunOptions(layout_seed=3),
    RunOptions(order="seeded", order_seed=5, contract=True, static_checks=False),
    RunOptions(order="reverse", layout_seed=4, flush_denormals=True, static_checks=False),
    RunOptions(layout_seed=5, contract=True, flush_denormals=True, static_checks=False),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("name", ["simdgroup", "tensor"])
def test_one_rounding_from_float64(name: Name, group_size: int, bits: int, dtype: mx.Dtype) -> None:
    run = product(name, metal_kernel)
    for rows, options in zip(ROWS[name], OPTIONS, strict=False):
        problem = Problem(rows, 37, 3 * group_size, group_size, bits, dtype)
        with running(options) as reports:
            got = problem.run(run)
        assert_one_rounding(got, *problem.operands())
        for weights in ("w", "scales", "biases"):
            traffic = reports[0].traffic[weights]
            assert (traffic.bytes_read, traffic.most_reads) == (traffic.bytes, 1)
