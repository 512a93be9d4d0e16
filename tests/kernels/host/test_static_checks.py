"""The strict pass and the lint: what each rejects, and what it must let through."""

import re

import mlx.core as mx
import pytest

from kernels.host import metal_kernel
from kernels.host.lint import lint
from kernels.host.signature import KernelText
from kernels.host.strict import strict_findings


def text(source: str, header: str = "") -> KernelText:
    kernel = metal_kernel("case", ["x", "small", "s"], ["out"], source, header)
    inputs = [mx.zeros((8, 8)), mx.zeros(4), mx.array(1.0)]
    return kernel.text(inputs, [mx.float32], [("T", mx.bfloat16), ("N", 4), ("FLAG", True)])


@pytest.mark.parametrize(
    ("source", "header", "place", "words"),
    [
        ("const device float* p = small; out[0] = p[0];", "", ("body", 1), "cannot initialize a variable of type"),
        ("\n\nout[0] = ((const device float*)&s)[0];", "", ("body", 3), "converts between mismatching address spaces"),
        ("out[0] = ((const device float*)x_shape)[0];", "", ("body", 1), "mismatching address spaces"),
        ("threadgroup float t[4]; t[0] = 1; out[0] = ((device float*)t)[0];", "", ("body", 1), "mismatching"),
        ("float a[4]; g(a);", "void g(device float* p) { p[0] = 1; }", ("body", 1), "no matching function for call"),
        (
            "h(out);",
            "\nvoid h(device float* o) { threadgroup float t[4]; t[0] = o[0]; }",
            ("header", 2),
            "local address",
        ),
        ("out[0] = f(x[0]);", "float f(const float& a) { return a; }", ("header", 1), "a has no address space"),
        ("out[0] = 0;", "struct S {\n    const float* p;\n};", ("header", 2), "p has no address space"),
        ("const float* p = x;\nout[0] = p[0];", "", ("body", 1), "p has no address space"),
        ("x[0] = 1;", "", ("body", 1), "read-only variable is not assignable"),
        ("threadgroup atomic_uint n[2];\nn[0] += 1; out[0] = 0;", "", ("body", 2), "no viable overloaded '+='"),
        ("out[0] = float4(1.0f, 2.0f).x;", "", ("body", 1), "wrong number of vector elements"),
        ("out[0] = f(1);", "float f(int n) { if (n > 1) return 2.0f; }", ("header", 1), "non-void function"),
        ("long double d = 1; out[0] = d;", "", ("body", 1), "long double"),
        ("out[0] = f(x);", "template <typename V>\nfloat f(const V* p) { return p[0]; }", ("header", 2),
         "p has no address space"),
        ("S a; a.at() = 1; out[0] = a.v;", "struct S {\nfloat v;\nthread float& at() { return v; } };", ("header", 3),
         "changes address space"),
        ("S<decltype(out[0] + 1)> a; float v = 1; S<decltype(v)> b; out[0] = 1;",
         "template <typename V> struct S {\nV v; };", ("header", 2), "field may not be qualified with an address"),
        ("int n = 3; out[0] = f(n);", "float f(constant int& n) { return n; }", ("body", 1), "no matching function"),
        ("out[0] = f(x_shape[0]);", "float f(const thread int& n) { return n; }", ("body", 1), "no matching function"),
        ("static int n = 0;\nout[0] = n++;", "", ("body", 1), "n outlives the thread"),
        ("static constexpr int n = 3;\nout[0] = n;", "", ("body", 1), "n outlives the thread"),
        ("out[0] = n;", "\nconst int n = 3;", ("header", 2), "n outlives the thread"),
        ("out[0] = a::n;", "namespace a {\nconstexpr float n = 3; }", ("header", 2), "n outlives the thread"),
        ("out[0] = n<3>;", "template <int i>\nconstexpr int n = i;", ("header", 2), "n outlives the thread"),
        ("out[0] = S::n;", "struct S {\n\nstatic constexpr int n = 3; };", ("header", 3), "n outlives the thread"),
        ("out[0] = f(3);", "int f(int n) { return n < 2 ? 1 : n * f(n - 1); }", ("header", 1), "f calls itself"),
        ("out[0] = f(3);", "int f(int n);\nint g(int n) { return f(n); }\nint f(int n) { return n < 2 ? 1 : g(1); }",
         ("header", 2), "g calls itself"),
        ("out[0] = f<int>(3);", "template <typename V>\nint f(V n) { return n < 2 ? 1 : f<V>(n - 1); }", ("header", 2),
         "f calls itself"),
        ("S s3; out[0] = s3.f(3);", "struct S {\nint f(int n) { return n < 2 ? 1 : this->f(n - 1); } };", ("header", 2),
         "f calls itself"),
        ("int i = 0;\nagain: if (i++ < 4) goto again;\nout[0] = i;", "", ("body", 2), "Metal has no goto"),
        ('\nasm(""); out[0] = 1;', "", ("body", 2), "Metal has no asm"),
        ("half h = half(1.0f);\nout[0] = float(h * bfloat(2.0f));", "", ("body", 2), "half and bfloat do not convert"),
        ("bfloat b = bfloat(1.0f);\nhalf h = b; out[0] = float(h);", "", ("body", 2), "cannot initialize a variable"),
        ("int4 n = int4(1);\nfloat4 v = float4(1.0f) + n; out[0] = v.x;", "", ("body", 2), "between vector types"),
        ("int4 n = int4(1);\nuint4 v = n; out[0] = v.x;", "", ("body", 2), "cannot initialize a variable"),
        ("float (*p)(float) = f; out[0] = p(1.0f);", "float f(float v) { return v; }", ("body", 1),
         "pointers to functions are not allowed"),
        ("out[0] = std::max(1.0f, s);", "", ("body", 1), "undeclared identifier 'std'"),
        ("\nfloat a[int(s)]; a[0] = 1; out[0] = a[0];", "", ("body", 2), "array size is not a constant expression"),
        ("out[0] = float(simd_sum(long(1)));", "", ("body", 1), "Metal has no simd_sum of values of this type"),
        ("out[0] = float(simd_max(s > 1.0f));", "", ("body", 1), "Metal has no simd_max of values of this type"),
        ("out[0] = simd_xor(s);", "", ("body", 1), "Metal has no simd_xor of values of this type"),
        ("threadgroup atomic_float n;\natomic_fetch_add_explicit(&n, 1.0f, memory_order_relaxed); out[0] = 0;", "",
         ("body", 2), "Metal has no atomic_fetch_add_explicit of this type in this memory"),
        ("atomic_fetch_max_explicit((device atomic_float*)out, 1.0f, memory_order_relaxed);", "",
         ("body", 1), "Metal has no atomic_fetch_max_explicit of this type in this memory"),
        ("threadgroup atomic<half> n;\natomic_store_explicit(&n, half(1), memory_order_relaxed); out[0] = 0;", "",
         ("body", 2), "Metal has no atomic_store_explicit of this type in this memory"),
        ("threadgroup atomic_uint n;\natomic_store_explicit(&n, 1u, memory_order_seq_cst); out[0] = 0;", "",
         ("body", 2), "undeclared identifier 'memory_order_seq_cst'"),
        ("simdgroup_matrix<half, 8, 8> a; simdgroup_matrix<float, 8, 8> b;\nsimdgroup_multiply(b, a, b);", "",
         ("body", 2), "both operands of a product of matrices have one type"),
        ("simdgroup_matrix<half, 8, 8> a; simdgroup_matrix<bfloat, 8, 8> b;\nsimdgroup_multiply(b, a, a);", "",
         ("body", 2), "a product of matrices has the operands' type or float"),
        ("simdgroup_matrix<half, 8, 8> a; simdgroup_matrix<float, 8, 8> b;\n"
         "simdgroup_multiply_accumulate(b, a, a, a);", "", ("body", 2), "sums of matrices keep their type"),
    ],
)  # fmt: skip
def test_strict_pass_rejects(source: str, header: str, place: tuple[str, int], words: str) -> None:
    findings = strict_findings(text(source, header))
    assert [(finding.file, finding.line) for finding in findings if words in finding.message] == [place], findings


@pytest.mark.parametrize(
    ("source", "header"),
    [
        ("thread float* p; float a[2]; p = a; p[0] = x[0]; out[0] = p[0];", ""),
        ("Pair p = Pair(1.0f); out[0] = p.sum();", "struct Pair { float a; Pair(float b) thread : a(b) {}\n"
         "float sum() const thread { return a; } };"),
        ("auto twice = [](float v) { return 2.0f * v; }; out[0] = twice(s);", ""),
        ("T sums[N]; for (int n = 0; n < N; ++n) sums[n] = FLAG ? T(x[n]) : T(0); out[0] = sums[1];", ""),
        ("threadgroup float t[32]; threadgroup float* p = t + 1; p[0] = 1; out[0] = t[1];", ""),
        ("metal::remove_addrspace_t<decltype(x[0])> v = x[0]; out[0] = v;", ""),
        ("out[0] = weights[2];", "constant float weights[4] = {1, 2, 3, 4};"),
        ("simdgroup_matrix<float, 8, 8> m; simdgroup_load(m, x); simdgroup_multiply(m, m, simdgroup_float8x8(2.0f));\n"
         "simdgroup_store(m, out);", ""),
        ("out[0] = as_type<float>(uint(simd_sum(uint4(1u)).x)) + float(ulong(simd_ballot(true)));", ""),
        ("out[0] = n<3> + a::n + S::n;", "template <int i> constexpr constant int n = i;\n"
         "namespace a { constant float n = 3; }\nstruct S { static constexpr constant int n = 3; };"),
        ("constexpr int n = 3; const float f = 2; out[0] = n * f;", ""),
        ("out[0] = f(3) + g<2>(1);", "int f(int n);\nint g(int n) { return n; }\nint f(int n) { return g(n) + g(n); }\n"
         "template <int i> int g(int n) { return f(n) + i; }"),
        ("S a; a.v = 1; out[0] = a.get();", "struct S { float v; float get() const { return v; } };"),
        ("auto p = x + 1; auto& first = out[0]; first = p[0];", ""),
        ("out[0] = f(x) + f(&small[1]);", "template <typename P> float f(P p) { return p[0]; }"),
        ("half h = half(float(bfloat(2.0f))); bfloat b = bfloat(float(h)); out[0] = float(b) + h;", ""),
        ("threadgroup atomic_int n; atomic_fetch_max_explicit(&n, 1, memory_order_relaxed);\n"
         "atomic_fetch_add_explicit((device atomic_float*)out, 1.0f, memory_order_relaxed);", ""),
        ("simdgroup_matrix<bfloat, 8, 8> a; simdgroup_matrix<float, 8, 8> b;\n"
         "simdgroup_multiply_accumulate(b, a, a, b); simdgroup_store(b, out);", ""),
    ],
)  # fmt: skip
def test_strict_pass_accepts(source: str, header: str) -> None:
    assert strict_findings(text(source, header)) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("float4 b = (float4)a;", "write float4(...) instead"),
        ("x = (const uint2) y;", "write const uint2(...) instead"),
        ("x = (vec<T, 4>)(y);", "write vec<T, 4>(...) instead"),
        ("x = 1.0;", "1.0 has no suffix"),
        ("x = y * .5 + 1.0f;", ".5 has no suffix"),
        ("x = 1e-3;", "1e-3 has no suffix"),
        ("unsigned long long n = 1;", "Metal has no unsigned long long"),
        ("// caf\u00e9", "is not ASCII"),
    ],
)
def test_lint_rejects(source: str, words: str) -> None:
    findings = lint(text(f"\n{source}"))
    assert [(finding.file, finding.line) for finding in findings] == [("body", 2)]
    assert words in findings[0].message
    assert [(finding.file, finding.line) for finding in lint(text("", source))] == [("header", 1)]


@pytest.mark.parametrize(
    "source",
    [
        "float4 b = float4(a);",
        "f(a, (float)b);",
        "float4 v = *(const device float4*)(x + 4);",
        "float f(float4) { return 1.0f; }",
        "x = 1.0f + 2.0h + 3e5f + 0x1.8p3f;",
        "x = v.x1 + a1.b2; y = 10;",
        "// 1.0 and (float4)a",
        "sizeof(float4) * n",
        "long along = long(n);",
    ],
)
def test_lint_accepts(source: str) -> None:
    assert lint(text(source)) == []


PRODUCT = """
    using namespace mpp::tensor_ops;
    using size = metal::dextents<INDEX, 2>;
    constexpr auto descriptor = matmul2d_descriptor(SHAPE);
    matmul2d<descriptor, metal::execution_simdgroups<SIMDGROUPS>> op;
    threadgroup T tile[32 * 64];
    metal::tensor<LEFT, size, metal::tensor_inline> left((LEFT*)x, size(32, 32));
    metal::tensor<threadgroup T, size, metal::tensor_inline> right(tile, size(64, 32));
    using Left = metal::remove_addrspace_t<decltype(left)>;
    using Right = metal::remove_addrspace_t<decltype(right)>;
    auto left_share = op.template get_left_input_cooperative_tensor<T, T, SUM>();
    auto right_share = op.template get_right_input_cooperative_tensor<T, T, SUM>();
    auto sum = op.template get_destination_cooperative_tensor<DESTINATION, SUM>();
    op.run(RUN);
"""
GOOD_PRODUCT = {
    "INDEX": "int",
    "SHAPE": "16, 32, 16",
    "SIMDGROUPS": "1",
    "LEFT": "device T",
    "DESTINATION": "Left, Right",
    "SUM": "float",
    "RUN": "left, right, sum",
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"LEFT": "device const T"}, "elements are const"),
        ({"DESTINATION": "decltype(left), Right"}, "write metal::remove_addrspace_t<decltype(x)>"),
        ({"DESTINATION": "Left, const Right"}, "write metal::remove_addrspace_t<decltype(x)>"),
        ({"DESTINATION": "Left, T"}, "types of tensors are expected here"),
        ({"SUM": "const float"}, "the element type has an address space, a const or a reference"),
        ({"SUM": "decltype(out[0])"}, "the element type has an address space, a const or a reference"),
        ({"SHAPE": "8, 24, 16"}, "at least one of m and n must be a multiple of 16"),
        ({"SHAPE": "16, 32, 24"}, "k must be dynamic or a multiple of 16"),
        ({"INDEX": "uint"}, "index type of the extents must be int"),
        ({"LEFT": "thread T"}, "operands lie in device or threadgroup memory"),
        ({"LEFT": "device uint"}, "no product of these element types"),
        ({"SUM": "half"}, "no product of these element types"),
        ({"LEFT": "device half"}, None),
        ({"LEFT": "device half", "DESTINATION": "Right, Left"}, "made for another operand or for other element types"),
        ({"RUN": "left_share, right, sum"}, None),
        ({"RUN": "right_share, right, sum"}, "made for another operand or for other element types"),
        ({"RUN": "left_share, right, sum", "SHAPE": "16, 32"}, "cooperative inputs need a k in the descriptor"),
        ({"RUN": "left_share, right, sum", "SIMDGROUPS": "2"}, "cooperative inputs need a single simdgroup"),
        ({"RUN": "left, right, sum", "SIMDGROUPS": "2", "SHAPE": "8, 64"}, None),
        ({"RUN": "left_share, right_share, sum"}, None),
        ({"RUN": "left_share, right_share, sum", "SHAPE": "16, 16, 16"}, "one of m, n and k must be 32 if both"),
        ({"RUN": "left_share, right_share, sum", "SHAPE": "16, 64, 32"}, "must be 16 or 32 if both inputs"),
    ],
)
def test_products_that_matmul2d_does_not_have(changed: dict[str, str], words: str | None) -> None:
    source = PRODUCT
    for name, value in {**GOOD_PRODUCT, **changed}.items():
        source = re.sub(rf"\b{name}\b", value, source)
    findings = strict_findings(text(source))
    if words is None:
        assert findings == []
    else:
        assert [finding for finding in findings if words in finding.message], findings
        assert {finding.file for finding in findings} == {"body"}
