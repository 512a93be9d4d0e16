"""The three places where the text is rewritten for the compiler, and what is refused."""

import mlx.core as mx
import pytest
from host_runs import run

from kernels.host import metal_kernel
from kernels.host.toolchain import CompileError
from kernels.host.translate import UnsupportedText, translate


def body_of(source: str) -> str:
    text = metal_kernel("case", ["x"], ["out"], source).text([mx.zeros(64)], [mx.float32])
    return translate(text).partition('#line 1 "body"\n')[2].rpartition("\n}\n#line")[0]


@pytest.mark.parametrize(
    ("declaration", "rewritten"),
    [
        ("threadgroup float t[64];", 'auto& t = host::threadgroup_variable<float [64], 0>("t"); '),
        (
            "threadgroup atomic_uint used, ties[4][N];",
            'auto& used = host::threadgroup_variable<atomic_uint, 0>("used"); '
            'auto& ties = host::threadgroup_variable<atomic_uint [4][N], 1>("ties"); ',
        ),
        (
            "threadgroup atomic<uint> counts[256 /* bins */ * (B + 1)];",
            'auto& counts = host::threadgroup_variable<atomic<uint> [256 * (B + 1)], 0>("counts"); ',
        ),
        (
            "#if defined(A) && \\\n  defined(B)\nthreadgroup float t[4];\n#endif",
            '#if defined(A) && \\\n  defined(B)\nauto& t = host::threadgroup_variable<float [4], 0>("t"); \n#endif',
        ),
        ("threadgroup alignas(64) T tile[K];", 'auto& tile = host::threadgroup_variable<T [K], 0>("tile"); '),
        (
            "int a; threadgroup metal::vec<float, 2>\n  p;\nint b;",
            'int a; auto& p = host::threadgroup_variable<metal::vec<float, 2>, 0>("p"); \n\nint b;',
        ),
    ],
)
def test_threadgroup_storage(declaration: str, rewritten: str) -> None:
    assert body_of(declaration).replace("host::make", "") == rewritten


@pytest.mark.parametrize(
    "source",
    [
        "threadgroup float* p = t;",
        "const threadgroup float* p;",
        "threadgroup const float& first = t[0];",
        "f((threadgroup float*)t);",
        "metal::tensor<threadgroup T, size, metal::tensor_inline> right(tile, size(16, 32));",
        "// threadgroup float t[64];",
        "threadgroup_barrier(mem_flags::mem_threadgroup);",
        "vec<float, 4> v = w;",
        "using V = metal::vec<T, 8>;",
    ],
)
def test_what_stays_as_it_is(source: str) -> None:
    assert body_of(source) == source


def test_construction_of_vectors() -> None:
    assert body_of("x = vec<float, 4>(a, b);") == "x = host::make<vec<float, 4>>(a, b);"
    assert body_of("x = metal::vec<vec<T, 2>, 3> (a);") == "x = host::make<metal::vec<vec<T, 2>, 3>> (a);"


def test_lines_are_those_of_the_text() -> None:
    source = "int a;\nthreadgroup float t[\n  64\n];\nvec<float, 2> v = vec<float,\n  2>(1.0f, 2.0f);\n@"
    rewritten = body_of(source)
    assert rewritten.count("\n") == source.count("\n")
    with pytest.raises(CompileError, match=r"body:7:1: error"):
        run(source, {"x": mx.zeros(64)}, {"out": ((1,), mx.float32)}, grid=(1, 1, 1))


def test_threadgroup_variables_of_the_header_are_refused() -> None:
    header = "float f() { threadgroup float t[4]; return t[0]; }"
    with pytest.raises(UnsupportedText, match="belong at the top of the kernel's body"):
        run("out[0] = f();", {}, {"out": ((1,), mx.float32)}, grid=(1, 1, 1), header=header)


def test_the_defect_of_mlx_is_explained() -> None:
    source = "one[0] = x_shape[0]; two[0] = 0;"
    outputs = {"one": ((1,), mx.float32), "two": ((1,), mx.float32)}
    with pytest.raises(UnsupportedText, match="mention an attribute, such as thread_position_in_grid"):
        run(source, {"x": mx.zeros(64)}, outputs, grid=(1, 1, 1))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("out[0] = max(int(x[0]), thread_position_in_grid.x);", "call to 'max' is ambiguous"),
        ("threadgroup float t[4]; const device float* p = t; out[0] = p[0];", "cannot initialize a variable of type"),
        ("float4 v = float4(1.0f, 2.0f, 3.0f); out[0] = v.x;", "wrong number of vector elements"),
        ("threadgroup atomic_uint n; n += 1; out[0] = 0;", "no viable overloaded '\\+='"),
        ("simdgroup_matrix<half, 8, 8> m; simdgroup_load(m, x); out[0] = 0;", "no matching function"),
        ("x[0] = 1; out[0] = 0;", "read-only variable is not assignable"),
    ],
)
def test_errors_of_the_compiler_are_passed_on(source: str, words: str) -> None:
    with pytest.raises(CompileError, match=words):
        run(source, {"x": mx.zeros(64)}, {"out": ((1,), mx.float32)}, grid=(1, 1, 1))
