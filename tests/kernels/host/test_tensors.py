"""matmul2d and cooperative tensors against numpy, in several layouts; MLX's own header in the one that it assumes."""

import re
from pathlib import Path

import mlx
import mlx.core as mx
import numpy as np
import pytest
from host_runs import as_float64, run

from kernels.host import Defect, RunOptions

RANDOM = np.random.default_rng(11)
OPERANDS = """
    using namespace mpp::tensor_ops;
    using size = metal::dextents<int, 2>;
    constexpr auto descriptor = matmul2d_descriptor(M, N, K, TL, TR, false, ACC ?
        matmul2d_descriptor::mode::multiply_accumulate : matmul2d_descriptor::mode::multiply);
    matmul2d<descriptor, metal::execution_simdgroups<S>> op;
    metal::tensor<device T, size, metal::tensor_inline> A((device T*)a, TL ? size(M, K) : size(K, M));
    metal::tensor<device T, size, metal::tensor_inline> B((device T*)b, TR ? size(K, N) : size(N, K));
    metal::tensor<device float, size, metal::tensor_inline> C(c, size(N, M));
    using Left = metal::remove_addrspace_t<decltype(A)>;
    using Right = metal::remove_addrspace_t<decltype(B)>;
    auto product = op.template get_destination_cooperative_tensor<Left, Right, float>();
    for (ushort i = 0; i < product.get_capacity(); ++i) product[i] = 3.0f;
    if (thread_index_in_threadgroup > 1000) c[0] = 0;
"""


def operands(m: int, n: int, k: int, left: bool, right: bool) -> tuple[mx.array, mx.array]:
    a, b = RANDOM.standard_normal((m, k)).astype(np.float32), RANDOM.standard_normal((k, n)).astype(np.float32)
    return mx.array(a.T.copy() if left else a).astype(mx.bfloat16), mx.array(b.T.copy() if right else b).astype(
        mx.bfloat16
    )


@pytest.mark.parametrize("simdgroups", [1, 2])
@pytest.mark.parametrize(("left", "right"), [(False, False), (True, True), (False, True)])
def test_products_of_all_orientations(left: bool, right: bool, simdgroups: int) -> None:
    m, n, k = 16, 32, 48
    a, b = operands(m, n, k, left, right)
    template = [("T", mx.bfloat16), ("M", m), ("N", n), ("K", k), ("TL", left), ("TR", right)]
    expected = (as_float64(a).T if left else as_float64(a)) @ (as_float64(b).T if right else as_float64(b))
    source = OPERANDS + "op.run(A, B, product); product.store(C);"
    for accumulate in (False, True):
        for seed in (0, 1, 2, 5):
            (c,), report = run(
                source,
                {"a": a, "b": b},
                {"c": ((m, n), mx.float32)},
                grid=(32 * simdgroups, 1, 1),
                template=[*template, ("ACC", accumulate), ("S", simdgroups)],
                options=RunOptions(layout_seed=seed),
            )
            np.testing.assert_allclose(np.array(c), expected + 3 * accumulate, rtol=1e-4, atol=1e-4)
            assert report.traffic["a"].most_reads == 1


def test_cooperative_inputs_and_a_plain_destination() -> None:
    m, n, k = 16, 32, 16
    a, b = operands(m, n, k, False, False)
    source = (
        OPERANDS
        + """
        auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
        auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
        left.load(A);
        for (ushort i = 0; i < right.get_capacity(); ++i) {
            const auto at = right.get_multidimensional_index(i);
            if (right.get_mask(i)) right[i] = b[at[1] * N + at[0]];
        }
        op.run(left, right, C);
    """
    )
    template = [
        ("T", mx.bfloat16),
        ("M", m),
        ("N", n),
        ("K", k),
        ("TL", False),
        ("TR", False),
        ("ACC", False),
        ("S", 1),
    ]
    for seed in (0, 3, 4):
        (c,), _ = run(
            source,
            {"a": a, "b": b},
            {"c": ((m, n), mx.float32)},
            grid=(32, 1, 1),
            template=template,
            options=RunOptions(layout_seed=seed),
        )
        np.testing.assert_allclose(np.array(c), as_float64(a) @ as_float64(b), rtol=1e-4, atol=1e-4)


def test_elements_outside_the_extents_are_zero_and_not_stored() -> None:
    """Of k the descriptor is dynamic: a fixed one takes the tile for whole."""
    source = """
        using namespace mpp::tensor_ops;
        using size = metal::dextents<int, 2>;
        constexpr auto descriptor = matmul2d_descriptor(16, 16, DEPTH);
        matmul2d<descriptor, metal::execution_simdgroup> op;
        const metal::array<int, 2> strides = {1, 24};
        metal::tensor<device float, size, metal::tensor_inline> A((device float*)a, size(20, 9), strides);
        metal::tensor<device float, size, metal::tensor_inline> B((device float*)b, size(16, 20));
        metal::tensor<device float, size, metal::tensor_inline> C(c, size(14, 9));
        auto left = A.slice(8, 0);
        auto right = B.template static_slice<16, 12>(0, 8);
        auto target = C.slice(0, 0);
        op.run(left, right, target);
        if (thread_index_in_simdgroup > 31) c[0] = 0;
    """
    a = RANDOM.standard_normal((9, 24)).astype(np.float32)
    b = RANDOM.standard_normal((20, 16)).astype(np.float32)
    call = {"inputs": {"a": a, "b": b}, "outputs": {"c": ((9, 14), mx.float32)}, "grid": (32, 1, 1)}
    (c,), report = run(source.replace("DEPTH", "dynamic_length_v<int>"), **call)
    np.testing.assert_allclose(np.array(c), a[:, 8:20].astype(np.float64) @ b[8:, :14], rtol=1e-4, atol=1e-4)
    assert report.traffic["a"].bytes_read == 9 * 12 * 4
    _, report = run(source.replace("DEPTH", "16"), **call, options=RunOptions(raise_on_findings=False))
    (finding,) = report.findings
    assert finding.defect is Defect.OUT_OF_BOUNDS
    assert "matmul2d reads 16 values of k where an operand has 12" in finding.message


def test_elements_beyond_the_capacity_are_reported() -> None:
    source = OPERANDS + "op.run(A, B, product);\nproduct[8 * THIS] += 1.0f;\nproduct.store(C);"
    a, b = operands(16, 16, 16, False, False)
    template = [
        ("T", mx.bfloat16),
        ("M", 16),
        ("N", 16),
        ("K", 16),
        ("TL", False),
        ("TR", False),
        ("ACC", False),
        ("S", 1),
    ]
    for slot, expected in ((0, set()), (1, {Defect.BEYOND_CAPACITY})):
        _, report = run(
            source,
            {"a": a, "b": b},
            {"c": ((16, 16), mx.float32)},
            grid=(32, 1, 1),
            template=[*template, ("THIS", slot)],
            options=RunOptions(raise_on_findings=False),
        )
        assert report.defects == expected


def test_a_tensor_operation_needs_all_its_lanes() -> None:
    source = OPERANDS + "if (thread_index_in_simdgroup == 9) return;\nop.run(A, B, product);\nproduct.store(C);"
    a, b = operands(16, 16, 16, False, False)
    template = [
        ("T", mx.bfloat16),
        ("M", 16),
        ("N", 16),
        ("K", 16),
        ("TL", False),
        ("TR", False),
        ("ACC", False),
        ("S", 1),
    ]
    _, report = run(
        source,
        {"a": a, "b": b},
        {"c": ((16, 16), mx.float32)},
        grid=(32, 1, 1),
        template=template,
        options=RunOptions(raise_on_findings=False),
    )
    assert [finding.defect for finding in report.findings] == [Defect.DEADLOCK]
    assert "31 in the operation of all lanes at body:16, 1 returned" in report.findings[0].message


def inlined(header: str, included: set[str]) -> str:
    """A header of MLX's Metal kernels with its own includes put in; ASCII, as a kernel's header must be."""
    if header in included:
        return ""
    included.add(header)
    lines = []
    for line in (Path(next(iter(mlx.__path__))) / "include" / header).read_text().splitlines():
        include = re.match(r'\s*#include\s+"(mlx/[^"]+)"', line)
        lines.append(inlined(include.group(1), included) if include else line.encode("ascii", "ignore").decode())
    return "\n".join(line for line in lines if line.strip() != "#pragma once")


def test_nax_fragments_of_mlx_are_right_in_the_layout_that_they_assume_only() -> None:
    header = inlined("mlx/backend/metal/kernels/steel/gemm/nax.h", set())
    source = """
        using namespace mlx::steel;
        const int column = int(threadgroup_position_in_grid.x) * 32;
        NAXTile<float, M / 16, 2> sum;
        sum.clear();
        for (int k = 0; k < K; k += 32) {
            NAXTile<T, M / 16, 2> left;
            NAXTile<T, 2, 2> right;
            left.load(x + k, K);
            right.load(w + column * K + k, K);
            tile_matmad_nax(sum, left, metal::bool_constant<false>{}, right, metal::bool_constant<true>{});
        }
        sum.store(out + column, N);
    """
    x, w = operands(32, 64, 64, False, True)
    expected = as_float64(x) @ as_float64(w).T
    right = []
    for seed in (0, 1, 2, 3):
        (out,), _ = run(
            source,
            {"x": x, "w": w},
            {"out": ((32, 64), mx.bfloat16)},
            grid=(64, 1, 1),
            threadgroup=(32, 1, 1),
            header=header,
            template=[("T", mx.bfloat16), ("M", 32), ("K", 64), ("N", 64)],
            options=RunOptions(layout_seed=seed),
        )
        right.append(np.allclose(as_float64(out), expected, rtol=1e-2, atol=0.05))
    assert right == [True, False, False, False]
