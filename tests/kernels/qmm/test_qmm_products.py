"""The Metal variants on the host, against float64."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from qmm_problems import Problem, assert_one_rounding

from kernels.host import RunOptions, metal_kernel, running
from kernels.qmm.metal import Name, product

PRODUCTS = {name: product(name, metal_kernel) for name in ("simdgroup", "tensor")}
names = pytest.mark.parametrize("name", ["simdgroup", "tensor"])

# Ragged and whole tiles, fewer groups than simdgroups, scales of fewer than 8 elements, one group and thousands of k.
PROBLEMS = [
    Problem(1, 40, 320, 64, 4, mx.bfloat16),
    Problem(3, 2, 64, 64, 4, mx.bfloat16),
    Problem(8, 32, 96, 32, 8, mx.float16),
    Problem(11, 33, 640, 128, 4, mx.float16),
    Problem(16, 64, 192, 64, 4, mx.bfloat16),
    Problem(16, 256, 1024, 64, 4, mx.bfloat16),
    Problem(21, 32, 256, 128, 8, mx.bfloat16),
    Problem(24, 7, 96, 32, 4, mx.float32),
    Problem(31, 40, 128, 64, 8, mx.float32),
    Problem(32, 96, 160, 32, 4, mx.bfloat16),
    Problem(9, 35, 32, 32, 4, mx.float16),
    Problem(17, 31, 128, 128, 8, mx.bfloat16),
    Problem(2, 33, 5120, 128, 8, mx.float16),
    Problem(16, 40, 4096, 64, 4, mx.bfloat16),
    Problem(5, 8, 8192, 32, 4, mx.float32),
]
SCHEDULES = [
    RunOptions(),
    RunOptions(order="reverse", layout_seed=1),
    RunOptions(order="seeded", order_seed=2, layout_seed=2, byte_offsets={"x": 16, "w": 16, "scales": 4}),
]


@names
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_one_rounding_from_float64_in_every_schedule_and_layout(name: Name, problem: Problem) -> None:
    results = []
    for options in SCHEDULES:
        with running(options) as reports:
            results.append(problem.run(PRODUCTS[name]))
        assert reports[0].findings == ()
    assert_one_rounding(results[0], *problem.operands())
    for one, other in pairwise(results):
        assert mx.array_equal(one, other)


@names
@pytest.mark.parametrize("before", [(1,), (1, 1)], ids=["three dimensions", "four"])
def test_x_may_have_dimensions_of_one_before_its_rows(name: Name, before: tuple[int, ...]) -> None:
    x, *rest = Problem(11, 33, 128, 64, 4, mx.bfloat16).operands()
    y = PRODUCTS[name](x.reshape(*before, 11, 128), *rest)
    assert y.shape == (*before, 11, 33)
    assert mx.array_equal(y.reshape(11, 33), PRODUCTS[name](x, *rest))


@names
def test_scales_of_a_narrower_type_than_x(name: Name) -> None:
    x, w, scales, biases, group_size, bits = Problem(8, 32, 64, 32, 4, mx.float32).operands()
    operands = x, w, scales.astype(mx.bfloat16), biases.astype(mx.bfloat16), group_size, bits
    assert_one_rounding(PRODUCTS[name](*operands), *operands)


@names
def test_a_row_is_the_same_bits_among_any_number_of_rows(name: Name) -> None:
    x, *rest = Problem(32, 40, 192, 64, 4, mx.bfloat16).operands()
    together = np.array(PRODUCTS[name](x, *rest).view(mx.uint16))
    for rows in (1, 16):
        alone = np.array(PRODUCTS[name](x[:rows], *rest).view(mx.uint16))
        np.testing.assert_array_equal(alone, together[:rows])


@names
def test_every_byte_of_the_weights_is_read_once_whatever_the_rows(name: Name) -> None:
    read = {}
    for rows in (1, 16, 32):
        with running(RunOptions()) as reports:
            Problem(rows, 72, 512, 64, 4, mx.bfloat16).run(PRODUCTS[name])
        traffic = reports[0].traffic
        for weights in (traffic["w"], traffic["scales"], traffic["biases"]):
            assert (weights.bytes_read, weights.most_reads) == (weights.bytes, 1)
        assert traffic["w"].bytes == 72 * 512 // 2
        assert traffic["x"].bytes_read_once_per_threadgroup == 3 * traffic["x"].bytes  # of 32 columns
        lacking = -rows % 8 if name == "simdgroup" else 0
        assert traffic["x"].most_reads == 3 * (1 + lacking)  # the last row, once more for each that a block lacks
        assert traffic["out"].bytes_written == rows * 72 * 2
        read[rows] = traffic["w"].bytes_read
    assert read[16] / read[1] == read[32] / read[1] == 1.0
