"""The roofline's bytes are those that the emulator meters, and its matrices those of the model."""

from collections import Counter

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import qwen3_5

from bench import roofline
from bench.hybrid_passes import SHAPE
from bench.roofline import CHIPS, Chip, Work
from kernels.gated_delta_tree import Rows, Tree
from kernels.gated_delta_tree.call import COMMIT_INPUTS, OUTPUTS_INPUTS
from kernels.gated_delta_tree.metal import metal_recurrence
from kernels.host import Report, RunOptions, metal_kernel, running
from kernels.qmm.metal import Name, product
from kernels.tree_attention.metal import metal


def touched(report: Report, *names: str) -> int:
    """Bytes read and written of some buffers, each once."""
    return sum(report.traffic[name].unique_bytes_read + report.traffic[name].unique_bytes_written for name in names)


@pytest.mark.parametrize("name", ["simdgroup", "tensor"])
@pytest.mark.parametrize("rows", [1, 16])
def test_a_product_moves_the_bytes_that_the_emulator_meters(name: Name, rows: int) -> None:
    depth, columns = 256, 40
    packed = mx.quantize(mx.ones((columns, depth), mx.bfloat16), group_size=64, bits=4)
    with running(RunOptions()) as reports:
        product(name, metal_kernel)(mx.ones((rows, depth), mx.bfloat16), *packed, 64, 4)
    assert roofline.qmm(name, rows, depth, columns).bytes == touched(reports[0], "x", "w", "scales", "biases", "out")


def test_a_product_counts_the_rows_that_a_variant_computes() -> None:
    assert roofline.qmm("tensor", 1, 64, 32) == Work(32 * (32 + 4) + 2 * 96, 2 * 16 * 64 * 32, 2 * 64 * 32)
    assert [roofline.qmm("simdgroup", rows, 64, 32).matrix // (64 * 32) for rows in (1, 8, 9, 16)] == [16, 16, 32, 32]


@pytest.mark.parametrize("nodes", [1, 9])
def test_the_gated_delta_rule_moves_the_bytes_that_the_emulator_meters(nodes: int) -> None:
    key_heads, heads, keys, values = 2, 4, 64, 32
    q, k = (mx.full((1, nodes, key_heads, keys), 0.1, mx.bfloat16) for _ in "qk")
    v, beta = mx.ones((1, nodes, heads, values), mx.bfloat16), mx.ones((1, nodes, heads), mx.bfloat16)
    parameters = mx.zeros(heads), mx.zeros(heads, mx.bfloat16)
    rows, state = Rows(q, k, v, beta, beta, parameters, normed=False), mx.ones((1, heads, values, keys))
    run = metal_recurrence(metal_kernel)
    with running(RunOptions()) as reports:
        run.outputs(rows, state, Tree(range(-1, nodes - 1)))
        run.commit(rows, state, mx.arange(nodes, dtype=mx.int32))
    shape = key_heads, heads, keys, values
    of_outputs = touched(reports[0], *OUTPUTS_INPUTS, "y")
    assert roofline.tree_outputs(nodes, *shape).bytes == of_outputs
    of_commit = touched(reports[1], *COMMIT_INPUTS, "after")
    assert roofline.commit(nodes, *shape).bytes == of_commit


@pytest.mark.parametrize(("nodes", "context"), [(1, 40), (1, 200), (13, 200)])
def test_attention_reads_the_cache_as_often_as_the_emulator_meters(nodes: int, context: int) -> None:
    heads, groups, size = 6, 1, 256
    queries = mx.ones((1, heads, nodes, size), mx.bfloat16)
    cache = mx.ones((1, groups, context + nodes, size), mx.bfloat16)
    ancestors = mx.array([2 ** (node + 1) - 1 for node in range(nodes)], dtype=mx.uint32)
    with running(RunOptions()) as reports:
        metal(metal_kernel)(queries, cache, cache, ancestors, scale=0.1)
    assert len(reports) == (2 if context > 128 else 1)  # a second one merges spans
    read = sum(reports[0].traffic[name].bytes_read for name in ("keys", "values"))
    rest = sum(
        touched(report, name)
        for report in reports
        for name in ("queries", "partial", "extremes", "out")
        if name in report.traffic
    )
    assert roofline.tree_attention(nodes, context, heads, groups, size).bytes == read + rest


def test_the_matrices_are_the_linear_layers_of_the_model() -> None:
    model = qwen3_5.TextModel(qwen3_5.TextModelArgs.from_dict(SHAPE))  # nothing is evaluated: no memory is taken
    layers = [layer for _, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    counted: Counter[tuple[int, int]] = Counter()
    for matrix in roofline.matrices():
        counted[matrix.columns, matrix.depth] += matrix.count
    assert counted == Counter(layer.weight.shape for layer in layers)


def test_a_kernel_takes_the_longer_of_both_times() -> None:
    chip = Chip("round", "simdgroup", 1e9, 10, 1e9, 1000, "", vector_rate=100)
    assert chip.ms(Work(2_000_000, matrix=10**9)) == pytest.approx(2.0)  # 2 MB at 1 GB/s
    assert chip.ms(Work(2_000_000, matrix=10**10, vector=2 * 10**9)) == pytest.approx(3.0)  # 1 ms and 2 ms


def test_a_plain_pass_on_an_m5_takes_the_time_of_its_bytes() -> None:
    m5 = next(chip for chip in CHIPS if chip.name == "M5")
    # 25.6 G weights of 4.5 bits, and 0.46 GB of states: 48 layers, 48 heads, 128 x 128 float32, thrice over the bus.
    states = 3 * 48 * 48 * 128 * 128 * 4
    weights = sum(matrix.depth * matrix.columns * matrix.count for matrix in roofline.matrices()) * 9 / 16
    assert weights == pytest.approx(14.4e9, rel=0.01)
    assert roofline.pass_ms(m5, 1, 64) == pytest.approx((weights + states) / 153e6, rel=0.01)
