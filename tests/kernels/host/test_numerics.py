"""What kernels compute on the host, against numpy."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from host_runs import as_float64, run

from kernels.host import RunOptions, metal_kernel

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal(64).astype(np.float32)


def test_inputs_of_every_passing_form() -> None:
    source = """
        uint i = thread_position_in_grid.x;
        out[i] = scale * x[i] + small[i % 3] + float(count) + (flag ? 100.0f : 0.0f);
    """
    inputs = {"x": X, "small": np.arange(3, dtype=np.float32), "scale": 2.5, "count": 3, "flag": True}
    (out,), _ = run(source, inputs, {"out": ((64,), mx.float32)}, grid=(64, 1, 1))
    expected = np.float32(2.5) * X + np.tile(np.arange(3, dtype=np.float32), 22)[:64] + np.float32(3) + np.float32(100)
    assert np.array_equal(np.array(out), expected)


@pytest.mark.parametrize(
    "dtype",
    [
        mx.bool_,
        mx.uint8,
        mx.uint16,
        mx.uint32,
        mx.uint64,
        mx.int8,
        mx.int16,
        mx.int32,
        mx.int64,
        mx.float16,
        mx.float32,
    ],
)
def test_elements_of_a_type_arrive_and_return(dtype: mx.Dtype) -> None:
    values = mx.array([0, 1, 2, 3, 100, 127, 5, 6, 7, 8]).astype(dtype)
    source = "uint i = thread_position_in_grid.x; out[9 - i] = T(x[i]);"
    (out,), _ = run(source, {"x": values}, {"out": ((10,), dtype)}, grid=(10, 1, 1), template=[("T", dtype)])
    assert out.dtype == dtype
    assert np.array_equal(np.array(out), np.array(values)[::-1])


def test_bfloat_and_half_round_after_each_operation() -> None:
    a, b, c = (mx.array(RANDOM.standard_normal(256).astype(np.float32)) for _ in range(3))
    source = "uint i = thread_position_in_grid.x; out[i] = a[i] * b[i] + c[i];"
    for dtype in (mx.bfloat16, mx.float16):
        x, y, z = (values.astype(dtype) for values in (a, b, c))
        (out,), _ = run(source, {"a": x, "b": y, "c": z}, {"out": ((256,), dtype)}, grid=(256, 1, 1))
        product = (x.astype(mx.float32) * y.astype(mx.float32)).astype(dtype)
        expected = (product.astype(mx.float32) + z.astype(mx.float32)).astype(dtype)
        assert mx.array_equal(out, expected)


def test_conversion_to_bfloat_rounds_to_even() -> None:
    bits = RANDOM.integers(0, 2**32, 4096, dtype=np.uint32)
    values = bits[np.isfinite(bits.view(np.float32))].view(np.float32)
    source = "uint i = thread_position_in_grid.x; out[i] = bfloat16_t(x[i]);"
    (out,), _ = run(
        source, {"x": values}, {"out": ((values.size,), mx.bfloat16)}, grid=(values.size, 1, 1), threadgroup=(256, 1, 1)
    )
    assert mx.array_equal(out, mx.array(values).astype(mx.bfloat16))


def test_vectors() -> None:
    source = """
        uint i = thread_position_in_grid.x;
        float4 v = *(const device float4*)(x + 4 * i);
        float4 w = float4(v.wz, 1.0f, float(i));
        int4 n = int4(v * 10.0f);
        vec<float, 4> s = vec<float, 4>(n.yx, 2.0f, w.z);
        uint4 bits = as_type<uint4>(v);
        half4 h = half4(v);
        v.xy += w.zw;
        out[6 * i] = dot(v, w);
        out[6 * i + 1] = s.x * 100.0f + s.y + s.z + s.w;
        out[6 * i + 2] = as_type<float>(bits[2]);
        out[6 * i + 3] = float(h.w);
        out[6 * i + 4] = length(v.xyz);
        out[6 * i + 5] = select(float4(1.0f), float4(2.0f), v > w).x + float(any(v > w)) +
            clamp(v, float4(-0.5f), float4(0.5f)).y;
    """
    (out,), _ = run(source, {"x": X}, {"out": ((16, 6), mx.float32)}, grid=(16, 1, 1))
    v = X.reshape(16, 4).copy()
    ones, index = np.ones(16, np.float32), np.arange(16, dtype=np.float32)
    w = np.stack([v[:, 3], v[:, 2], ones, index], axis=1)
    n = np.trunc(v * np.float32(10))
    expected = np.empty((16, 6), np.float32)
    expected[:, 1] = n[:, 1] * 100 + n[:, 0] + 3
    expected[:, 2] = v[:, 2]
    expected[:, 3] = v[:, 3].astype(np.float16)
    v[:, :2] += w[:, 2:]
    expected[:, 0] = (v.astype(np.float64) * w).sum(1)
    expected[:, 4] = np.sqrt((v[:, :3].astype(np.float64) ** 2).sum(1))
    expected[:, 5] = np.where(v[:, 0] > w[:, 0], 2, 1) + (v > w).any(1) + np.clip(v[:, 1], -0.5, 0.5)
    np.testing.assert_allclose(np.array(out), expected, rtol=1e-6, atol=1e-6)


FLOAT_FUNCTIONS = {
    "exp(a)": np.exp,
    "metal::exp2(a)": np.exp2,
    "fast::exp2(a)": np.exp2,
    "precise::exp(a)": np.exp,
    "exp10(a)": lambda a: 10**a,
    "log(abs(a))": lambda a: np.log(np.abs(a)),
    "log2(fabs(a))": lambda a: np.log2(np.abs(a)),
    "sqrt(abs(a))": lambda a: np.sqrt(np.abs(a)),
    "rsqrt(abs(a))": lambda a: 1 / np.sqrt(np.abs(a)),
    "sin(a)": np.sin,
    "cos(a)": np.cos,
    "tanh(a)": np.tanh,
    "floor(a)": np.floor,
    "ceil(a)": np.ceil,
    "trunc(a)": np.trunc,
    "rint(a)": np.rint,
    "fract(a)": lambda a: a - np.floor(a),
    "sign(a)": np.sign,
    "saturate(a)": lambda a: np.clip(a, 0, 1),
    "min(a, 0.25f)": lambda a: np.minimum(a, 0.25),
    "fmax(a, 0.25f)": lambda a: np.maximum(a, 0.25),
    "clamp(a, -0.5f, 0.5f)": lambda a: np.clip(a, -0.5, 0.5),
    "pow(abs(a), 1.5f)": lambda a: np.abs(a) ** 1.5,
    "fma(a, a, 1.0f)": lambda a: a * a + 1,
    "mix(a, 1.0f, 0.25f)": lambda a: a + (1 - a) * 0.25,
    "step(0.5f, a)": lambda a: (a >= 0.5).astype(float),
    "copysign(2.0f, a)": lambda a: np.copysign(2, a),
    "atan2(a, 0.5f)": lambda a: np.arctan2(a, 0.5),
    "ldexp(a, 3)": lambda a: a * 8,
    "select(a, 3.0f, a > 0.0f)": lambda a: np.where(a > 0, 3, a),
    "isnan(a) || isinf(a) || !isfinite(a) ? 1.0f : 2.0f": lambda a: np.full_like(a, 2),
    "a * M_LOG2E_F": lambda a: a / np.log(2),
}


def test_float_functions() -> None:
    source = "uint i = thread_position_in_grid.x; float a = x[i];\n" + "\n".join(
        f"out[{row} * 64 + i] = {expression};" for row, expression in enumerate(FLOAT_FUNCTIONS)
    )
    (out,), _ = run(source, {"x": X}, {"out": ((len(FLOAT_FUNCTIONS), 64), mx.float32)}, grid=(64, 1, 1))
    for row, (expression, reference) in enumerate(FLOAT_FUNCTIONS.items()):
        np.testing.assert_allclose(
            np.array(out)[row], reference(X.astype(np.float64)), rtol=2e-6, atol=1e-6, err_msg=expression
        )


def test_special_values() -> None:
    source = """
        uint i = thread_position_in_grid.x;
        out[i] = max(x[i], -1.0f);
        out[8 + i] = exp(-INFINITY * (1.0f + float(i)));
        out[16 + i] = float(isnan(x[i])) + 2.0f * float(isinf(x[i]));
        out[24 + i] = simd_max(-INFINITY);
        out[32 + i] = numeric_limits<float>::max() * 2.0f;
    """
    x = np.array([np.nan, np.inf, -np.inf, 0, 1, -2, 3, -4], np.float32)
    (out,), _ = run(source, {"x": x}, {"out": ((5, 8), mx.float32)}, grid=(8, 1, 1))
    expected = [
        [-1, np.inf, -1, 0, 1, -1, 3, -1],
        [0] * 8,
        [1, 2, 2, 0, 0, 0, 0, 0],
        [-np.inf] * 8,
        [np.inf] * 8,
    ]
    assert np.array_equal(np.array(out), np.array(expected, np.float32))


INTEGER_FUNCTIONS = {
    "popcount(a)": lambda a: a.bit_count(),
    "clz(a)": lambda a: 32 - a.bit_length(),
    "ctz(a)": lambda a: (a & -a).bit_length() - 1 if a else 32,
    "reverse_bits(a)": lambda a: int(f"{a:032b}"[::-1], 2),
    "rotate(a, 5u)": lambda a: (a << 5 | a >> 27) & 0xFFFFFFFF,
    "mulhi(a, 0x9e3779b9u)": lambda a: a * 0x9E3779B9 >> 32,
    "extract_bits(a, 7u, 9u)": lambda a: a >> 7 & 0x1FF,
    "insert_bits(a, 5u, 8u, 4u)": lambda a: a & ~0xF00 | 0x500,
    "min(a, 1000u)": lambda a: min(a, 1000),
    "uint(abs(int(a >> 1) - 1000000))": lambda a: abs((a >> 1) - 1000000),
    "uint(ushort(a)) + uint(uchar(a))": lambda a: (a & 0xFFFF) + (a & 0xFF),
    "uint(ulong(a) * ulong(a) >> 32)": lambda a: a * a >> 32,
    "a / 7u + a % 7u": lambda a: a // 7 + a % 7,
}


def test_integer_functions() -> None:
    values = np.append(RANDOM.integers(0, 2**32, 61, dtype=np.uint32), np.array([0, 1, 2**32 - 1], np.uint32))
    source = "uint i = thread_position_in_grid.x; uint a = x[i];\n" + "\n".join(
        f"out[{row} * 64 + i] = {expression};" for row, expression in enumerate(INTEGER_FUNCTIONS)
    )
    (out,), _ = run(source, {"x": values}, {"out": ((len(INTEGER_FUNCTIONS), 64), mx.uint32)}, grid=(64, 1, 1))
    for row, (expression, reference) in enumerate(INTEGER_FUNCTIONS.items()):
        assert np.array(out)[row].tolist() == [reference(int(value)) for value in values], expression


def test_simd_functions() -> None:
    expressions = {
        "simd_sum(a)": lambda v: [v.sum()] * 32,
        "simd_product(1.0f + a * 0.01f)": lambda v: [np.prod(1 + v * 0.01)] * 32,
        "simd_max(a)": lambda v: [v.max()] * 32,
        "simd_min(a)": lambda v: [v.min()] * 32,
        "simd_prefix_inclusive_sum(a)": lambda v: np.cumsum(v),
        "simd_prefix_exclusive_sum(a)": lambda v: np.cumsum(v) - v,
        "simd_shuffle(a, 31 - lane)": lambda v: v[::-1],
        "simd_shuffle_xor(a, 5)": lambda v: v[np.arange(32) ^ 5],
        "simd_shuffle_up(a, 3)": lambda v: [*v[:3], *v[:-3]],
        "simd_shuffle_down(a, 3)": lambda v: [*v[3:], *v[-3:]],
        "simd_broadcast(a, 9)": lambda v: [v[9]] * 32,
        "simd_broadcast_first(a)": lambda v: [v[0]] * 32,
        "float(simd_is_first())": lambda v: [1] + [0] * 31,
        "float(simd_any(a > 2.0f)) + 2.0f * float(simd_all(a > -9.0f))": lambda v: [float((v > 2).any()) + 2] * 32,
        "float(popcount(uint(ulong(simd_ballot(a > 0.0f)))))": lambda v: [(v > 0).sum()] * 32,
        "float(simd_xor(lane * 3u) | simd_and(lane | 64u))": lambda v: (
            [np.bitwise_xor.reduce(np.arange(32) * 3) | 64] * 32
        ),
        "simd_sum(float4(a, 1.0f, 2.0f, a)).w": lambda v: [v.sum()] * 32,
    }
    source = "uint i = thread_position_in_grid.x; uint lane = thread_index_in_simdgroup; float a = x[i];\n"
    source += "\n".join(f"out[{row} * 64 + i] = {expression};" for row, expression in enumerate(expressions))
    (out,), _ = run(source, {"x": X}, {"out": ((len(expressions), 64), mx.float32)}, grid=(64, 1, 1))
    for row, (expression, reference) in enumerate(expressions.items()):
        expected = np.concatenate([reference(half) for half in X.astype(np.float64).reshape(2, 32)])
        np.testing.assert_allclose(np.array(out)[row], expected, rtol=1e-5, atol=1e-5, err_msg=expression)


def test_lanes_that_have_returned_take_no_part() -> None:
    source = """
        uint i = thread_position_in_grid.x;
        out[i] = 0;
        if (thread_index_in_simdgroup >= 20) return;
        out[i] = simd_sum(x[i]);
    """
    (out,), _ = run(source, {"x": X}, {"out": ((64,), mx.float32)}, grid=(64, 1, 1))
    sums = X.astype(np.float64).reshape(2, 32)[:, :20].sum(1)
    expected = np.where(np.arange(32) < 20, sums[:, None], 0).reshape(64)
    np.testing.assert_allclose(np.array(out), expected, rtol=1e-5, atol=1e-6)


def test_thread_attributes_in_a_ragged_grid() -> None:
    source = """
        uint3 g = thread_position_in_grid;
        uint at = (g.z * threads_per_grid.y + g.y) * threads_per_grid.x + g.x;
        device uint* o = out + 16 * at;
        o[0] = threadgroup_position_in_grid.x; o[1] = threadgroup_position_in_grid.y;
        o[2] = threadgroup_position_in_grid.z;
        o[3] = thread_position_in_threadgroup.x; o[4] = thread_position_in_threadgroup.y;
        o[5] = threads_per_threadgroup.x; o[6] = threads_per_threadgroup.y;
        o[7] = thread_index_in_threadgroup; o[8] = thread_index_in_simdgroup; o[9] = simdgroup_index_in_threadgroup;
        o[10] = threadgroups_per_grid.x * 100 + threadgroups_per_grid.y * 10 + threadgroups_per_grid.z;
        o[11] = simdgroups_per_threadgroup * 10 + dispatch_simdgroups_per_threadgroup;
        o[12] = dispatch_threads_per_threadgroup.x * 10 + dispatch_threads_per_threadgroup.y;
        o[13] = grid_size.x + grid_origin.x + threads_per_simdgroup + thread_execution_width;
        o[14] = quadgroups_per_threadgroup * 1000 + dispatch_quadgroups_per_threadgroup;
        o[15] = quadgroup_index_in_threadgroup * 10 + thread_index_in_quadgroup;
    """
    (out,), _ = run(source, {}, {"out": ((2, 10, 19, 16), mx.uint32)}, grid=(19, 10, 2), threadgroup=(8, 8, 4))
    seen = np.array(out)
    for z, y, x in np.ndindex(2, 10, 19):
        width, height = min(8, 19 - x // 8 * 8), min(8, 10 - y // 8 * 8)
        index = (z * height + y % 8) * width + x % 8
        simdgroups = (width * height * 2 + 31) // 32
        expected = [x // 8, y // 8, 0, x % 8, y % 8, width, height, index, index % 32, index // 32]
        expected += [321, simdgroups * 10 + 4, 88, 19 + 64]
        expected += [(width * height * 2 + 3) // 4 * 1000 + 32, index // 4 * 10 + index % 4]
        assert seen[z, y, x].tolist() == expected


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a,
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: a[:, ::2],
        lambda a: a[1:3, ::-1],
        lambda a: mx.broadcast_to(a[:1], (5, 8)),
        lambda a: a.astype(mx.bfloat16).T,
    ],
    ids=["contiguous", "transposed", "reversed", "every second", "both", "broadcast", "bfloat"],
)
@pytest.mark.parametrize("ensure_row_contiguous", [True, False])
def test_strides_of_inputs(view: Callable[[mx.array], mx.array], ensure_row_contiguous: bool) -> None:
    x = view(mx.arange(32, dtype=mx.float32).reshape(4, 8))
    source = """
        uint i = thread_position_in_grid.x;
        uint row = i / x_shape[1], column = i % x_shape[1];
        out[i] = float(x[long(row) * x_strides[0] + long(column) * x_strides[1]]) + 100.0f * float(x_ndim);
    """
    (out,), _ = run(
        source,
        {"x": x},
        {"out": (x.shape, mx.float32)},
        grid=(x.size, 1, 1),
        ensure_row_contiguous=ensure_row_contiguous,
    )
    assert np.array_equal(np.array(out), np.array(x.astype(mx.float32)) + 200)


def test_template_values_are_constants() -> None:
    source = """
        T sums[N];
        for (int n = 0; n < N; ++n) sums[n] = NEGATE ? -x[n] : x[n];
        for (int n = 0; n < N; ++n) out[n] = sums[N - 1 - n] + T(K) + T(0 * thread_position_in_grid.x);
    """
    template = [("T", mx.float32), ("N", 8), ("NEGATE", True), ("K", -3)]
    (out,), _ = run(source, {"x": X}, {"out": ((8,), mx.float32)}, grid=(1, 1, 1), template=template)
    assert np.array_equal(np.array(out), -X[7::-1] - 3)


def test_reduction_over_a_threadgroup() -> None:
    source = """
        threadgroup float partial[8];
        uint i = thread_position_in_threadgroup.x;
        float sum = simd_sum(x[thread_position_in_grid.x]);
        if (thread_index_in_simdgroup == 0) partial[simdgroup_index_in_threadgroup] = sum;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (i < 8) sum = partial[i];
        if (simdgroup_index_in_threadgroup == 0) sum = simd_sum(i < 8 ? sum : 0.0f);
        if (i == 0) out[threadgroup_position_in_grid.x] = sum;
    """
    x = RANDOM.standard_normal(1024).astype(np.float32)
    (out,), report = run(source, {"x": x}, {"out": ((4,), mx.float32)}, grid=(1024, 1, 1), threadgroup=(256, 1, 1))
    np.testing.assert_allclose(np.array(out), x.reshape(4, 256).astype(np.float64).sum(1), rtol=1e-5)
    assert (report.threadgroups, report.barriers, report.threadgroup_bytes) == (4, 4, 32)


def test_atomics_in_threadgroup_and_device_memory() -> None:
    source = """
        threadgroup atomic_uint counts[16];
        threadgroup atomic_int least, most;
        uint i = thread_position_in_threadgroup.x;
        if (i < 16) atomic_store_explicit(&counts[i], 0u, memory_order_relaxed);
        if (i == 0) {
            atomic_store_explicit(&least, 1000, memory_order_relaxed);
            atomic_store_explicit(&most, -1000, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        int value = x[thread_position_in_grid.x];
        atomic_fetch_add_explicit(&counts[value & 15], 1u, memory_order_relaxed);
        atomic_fetch_min_explicit(&least, value, memory_order_relaxed);
        atomic_fetch_max_explicit(&most, value, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (i < 16) {
            uint count = atomic_load_explicit(&counts[i], memory_order_relaxed);
            atomic_fetch_add_explicit(&histogram[i], int(count), memory_order_relaxed);
        }
        if (i == 0) {
            int low = atomic_load_explicit(&least, memory_order_relaxed);
            int high = atomic_load_explicit(&most, memory_order_relaxed);
            atomic_fetch_min_explicit(&extremes[0], low, memory_order_relaxed);
            atomic_fetch_max_explicit(&extremes[1], high, memory_order_relaxed);
            int seen = 0;
            while (!atomic_compare_exchange_weak_explicit(&extremes[2], &seen, seen + 1, memory_order_relaxed,
                                                          memory_order_relaxed)) {}
        }
    """
    x = RANDOM.integers(-100, 100, 512).astype(np.int32)
    (histogram, extremes), _ = run(
        source,
        {"x": x},
        {"histogram": ((16,), mx.int32), "extremes": ((3,), mx.int32)},
        grid=(512, 1, 1),
        threadgroup=(128, 1, 1),
        atomic_outputs=True,
        init_value=0,
    )
    assert np.array(histogram).tolist() == np.bincount(x & 15, minlength=16).tolist()
    assert np.array(extremes).tolist() == [min(x.min(), 0), max(x.max(), 0), 4]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_simdgroup_matrices(dtype: mx.Dtype) -> None:
    source = """
        simdgroup_matrix<T, 8, 8> a, b, at;
        simdgroup_matrix<float, 8, 8> sum = make_filled_simdgroup_matrix<float, 8, 8>(1.0f), scaled;
        simdgroup_load(a, x, 16, ulong2(8, 0));
        simdgroup_load(b, y);
        simdgroup_load(at, x, 16, ulong2(8, 0), true);
        simdgroup_multiply_accumulate(sum, a, b, sum);
        simdgroup_multiply(scaled, at, simdgroup_matrix<T, 8, 8>(T(2)));
        sum.thread_elements() *= 0.5f;
        simdgroup_store(sum, out, 8);
        simdgroup_store(scaled, out, 8, ulong2(0, 8), true);
        out[128 + thread_index_in_simdgroup] = float(thread_index_in_simdgroup);
    """
    x = mx.array(RANDOM.standard_normal((8, 16)).astype(np.float32)).astype(dtype)
    y = mx.array(RANDOM.standard_normal((8, 8)).astype(np.float32)).astype(dtype)
    (out,), _ = run(source, {"x": x, "y": y}, {"out": ((160,), mx.float32)}, grid=(32, 1, 1), template=[("T", dtype)])
    a, b = as_float64(x)[:, 8:], as_float64(y)
    result = np.array(out)[:128].reshape(2, 8, 8)
    np.testing.assert_allclose(result[0], 0.5 * (a @ b + 1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result[1], 2 * a, rtol=1e-6)


def test_outputs_begin_with_init_value() -> None:
    source = "uint i = thread_position_in_grid.x; if (i % 2 == 0) { out[i] += 1; n[i] += 1; }"
    outputs = {"out": ((8,), mx.bfloat16), "n": ((8,), mx.int32)}
    (out, n), _ = run(source, {}, outputs, grid=(8, 1, 1), init_value=1.5)
    assert np.array(out.astype(mx.float32)).tolist() == [2.5, 1.5] * 4
    assert np.array(n).tolist() == [2, 1] * 4


def test_functions_structs_and_constants_of_the_header() -> None:
    header = """
        #include <metal_stdlib>
        using namespace metal;
        constant float weights[4] = {0.5f, 1.0f, 2.0f, 4.0f};
        struct Pair {
            float a, b;
            float sum() const thread { return a + b; }
        };
        template <typename T> METAL_FUNC T twice(T value) { return value * T(2); }
    """
    source = """
        uint i = thread_position_in_grid.x;
        Pair pair = {x[i], weights[i % 4]};
        out[i] = twice(pair.sum());
    """
    (out,), _ = run(source, {"x": X}, {"out": ((64,), mx.float32)}, grid=(64, 1, 1), header=header)
    assert np.array_equal(np.array(out), 2 * (X + np.tile(np.array([0.5, 1, 2, 4], np.float32), 16)))


def test_verbose_prints_what_mlx_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run("out[thread_position_in_grid.x] = 1;", {}, {"out": ((1,), mx.float32)}, grid=(1, 1, 1), verbose=True)
    assert capsys.readouterr().out == (
        "Generated source code for `case`:\n```\n[[kernel]] void custom_kernel_case_float(\n"
        "  device float* out [[buffer(0)]],\n  uint3 thread_position_in_grid [[thread_position_in_grid]]) {\n"
        "out[thread_position_in_grid.x] = 1;\n}\n\n```\n"
    )


def test_calls_that_mlx_refuses() -> None:
    with pytest.raises(ValueError, match="at least one output"):
        metal_kernel("case", [], [], "")
    with pytest.raises(ValueError, match="Unknown compile option `mode`"):
        metal_kernel("case", [], ["out"], "", compile_options={"mode": "safe"})
    with pytest.raises(ValueError, match="'safe', 'relaxed', or 'fast'"):
        metal_kernel("case", [], ["out"], "", compile_options={"math_mode": "exact"})
    kernel = metal_kernel("case", ["x"], ["out"], "out[0] = x[0];", compile_options={"math_mode": "fast"})
    call = {"output_shapes": [(1,)], "output_dtypes": [mx.float32], "grid": (1, 1, 1)}
    with pytest.raises(ValueError, match="Expected `inputs` to have size 1 but got size 2"):
        kernel(inputs=[1.0, 2.0], threadgroup=(1, 1, 1), **call)
    with pytest.raises(ValueError, match=r"\(1056\) is greater than the maximum"):
        kernel(inputs=[1.0], threadgroup=(1056, 1, 1), **call)
    with pytest.raises(ValueError, match="Invalid template argument"):
        kernel(inputs=[1.0], threadgroup=(1, 1, 1), template=[("N", np.int64(3))], **call)
    names = [f"x{n}" for n in range(31)]
    with pytest.raises(ValueError, match="32 buffers, shapes and strides among them; Metal has 31"):
        metal_kernel("case", names, ["out"], "out[0] = 1;")(inputs=[1.0] * 31, threadgroup=(1, 1, 1), **call)


def test_names_that_mlx_puts_in_front() -> None:
    source = """
        uint i = thread_position_in_grid.x;
        out[2 * i] = float(x[elem_to_loc(i, x_shape, x_strides, x_ndim)]) + float(ceildiv(i, 3u));
        out[2 * i + 1] = i == 0 ? Limits<float>::min : i == 1 ? float(Limits<bfloat16_t>::finite_max) :
            i == 2 ? float(Limits<int>::min) : float(Limits<uint8_t>::max);
    """
    x = mx.arange(24, dtype=mx.float16).reshape(2, 3, 4).transpose(2, 0, 1)
    (out,), _ = run(source, {"x": x}, {"out": ((24, 2), mx.float32)}, grid=(24, 1, 1), ensure_row_contiguous=False)
    elements = np.array(x.astype(mx.float32)).reshape(24)
    assert np.array_equal(np.array(out)[:, 0], elements + np.ceil(np.arange(24) / 3).astype(np.float32))
    largest = float(mx.finfo(mx.bfloat16).max)
    assert np.array(out)[:, 1].tolist() == [-np.inf, largest, -(2.0**31)] + [255.0] * 21


def test_outputs_are_poisoned_unless_told_otherwise() -> None:
    source = "uint i = thread_position_in_grid.x; if (i == 1) out[i] = 1;"
    for poisoned, expected in ((True, [np.nan, 1, np.nan]), (False, [0, 1, 0])):
        options = RunOptions(poison_outputs=poisoned, raise_on_findings=False)
        (out,), _ = run(source, {}, {"out": ((3,), mx.float32)}, grid=(3, 1, 1), options=options)
        np.testing.assert_array_equal(np.array(out), np.array(expected, np.float32))


def test_uninitialised_private_memory_holds_a_pattern() -> None:
    source = "float a[2]; a[thread_position_in_grid.x] = 0; out[0] = a[1];"
    options = RunOptions(static_checks=False)
    (out,), _ = run(source, {}, {"out": ((1,), mx.float32)}, grid=(1, 1, 1), options=options)
    assert np.isnan(np.array(out)[0])
