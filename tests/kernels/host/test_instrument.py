"""The rewriting of IR text, on the forms that clang writes."""

import pytest

from kernels.host.instrument import UnknownAccess, instrument, type_bytes
from kernels.host.site import decode, encode

DEBUG = """
!1 = !DIFile(filename: "body", directory: "/tmp")
!2 = !DIFile(filename: "/include/vectors.h", directory: "/tmp")
!3 = distinct !DISubprogram(name: "kernel", scope: !1, file: !1, line: 1)
!4 = !DILexicalBlock(scope: !3, file: !1, line: 2, column: 3)
!5 = !DILocation(line: 7, column: 12, scope: !4)
!6 = !DILocation(line: 9, column: 2, scope: !7)
!7 = distinct !DISubprogram(name: "make", scope: !2, file: !2, line: 40)
"""


@pytest.mark.parametrize(
    ("line", "hooks", "rewritten"),
    [
        (
            "  %3 = load <4 x float>, ptr addrspace(1) %2, align 16, !tbaa !9, !dbg !5",
            ["  %host.1 = call ptr addrspace(1) @host_load_device(ptr addrspace(1) %2, i64 16, i32 28684, i64 16)"],
            "  %3 = load <4 x float>, ptr addrspace(1) %host.1, align 1, !tbaa !9, !dbg !5",
        ),
        (
            "  store i32 0, ptr addrspace(3) %p, align 4, !dbg !6",
            ["  %host.1 = call ptr addrspace(3) @host_store_threadgroup(ptr addrspace(3) %p, i64 4, i32 0, i64 4)"],
            "  store i32 0, ptr addrspace(3) %host.1, align 1, !dbg !6",
        ),
        (
            "  store volatile <2 x half> <half 0xH3C00, half 0xH0000>, ptr addrspace(1) @g, align 4",
            ["  %host.1 = call ptr addrspace(1) @host_store_device(ptr addrspace(1) @g, i64 4, i32 0, i64 4)"],
            "  store volatile <2 x half> <half 0xH3C00, half 0xH0000>, ptr addrspace(1) %host.1, align 1",
        ),
        (
            "  %c = load ptr addrspace(1), ptr addrspace(2) %pp, align 8",
            ["  %host.1 = call ptr addrspace(2) @host_load_constant(ptr addrspace(2) %pp, i64 8, i32 0, i64 8)"],
            "  %c = load ptr addrspace(1), ptr addrspace(2) %host.1, align 1",
        ),
        (
            "  call void @llvm.memcpy.p1.p3.i64(ptr addrspace(1) %to, ptr addrspace(3) %b, i64 24, i1 false)",
            [
                "  %host.1 = call ptr addrspace(1) @host_store_device(ptr addrspace(1) %to, i64 24, i32 0, i64 1)",
                "  %host.2 = call ptr addrspace(3) @host_load_threadgroup(ptr addrspace(3) %b, i64 24, i32 0, i64 1)",
            ],
            "  call void @llvm.memcpy.p1.p3.i64(ptr addrspace(1) %host.1, ptr addrspace(3) %host.2, i64 24, i1 false)",
        ),
        (
            "  call void @llvm.memset.p3.i64(ptr addrspace(3) align 4 %to, i8 0, i64 64, i1 false)",
            ["  %host.1 = call ptr addrspace(3) @host_store_threadgroup(ptr addrspace(3) %to, i64 64, i32 0, i64 1)"],
            "  call void @llvm.memset.p3.i64(ptr addrspace(3) align 4 %host.1, i8 0, i64 64, i1 false)",
        ),
    ],
)  # fmt: skip
def test_accesses_go_through_hooks(line: str, hooks: list[str], rewritten: str) -> None:
    lines = instrument(f"{line}\n{DEBUG}").splitlines()
    assert lines[: len(hooks) + 1] == [*hooks, rewritten]


@pytest.mark.parametrize(
    "line",
    [
        "  store ptr addrspace(1) %x, ptr %x.addr, align 8",
        "  %1 = load ptr addrspace(3), ptr %t, align 8",
        "  %2 = getelementptr inbounds float, ptr addrspace(1) %1, i64 3",
        "  call void @llvm.memcpy.p0.p0.i64(ptr align 4 %a, ptr align 4 %b, i64 24, i1 false)",
        "  call void @f(ptr addrspace(1) %x)",
        "  %3 = load float, ptr %x, align 4",
    ],
)
def test_private_memory_and_pointers_are_left_alone(line: str) -> None:
    assert instrument(line).splitlines()[0] == line


@pytest.mark.parametrize(
    "line",
    [
        "  %1 = atomicrmw add ptr addrspace(1) %p, i32 1 seq_cst, align 4",
        "  %1 = cmpxchg ptr addrspace(3) %p, i32 1, i32 2 seq_cst seq_cst, align 4",
        "  %1 = load atomic i32, ptr addrspace(1) %p seq_cst, align 4",
        "  %1 = load %struct.S, ptr addrspace(1) %p, align 4",
        "  call void @llvm.memcpy.inline.p1.p0.i64(ptr addrspace(1) %a, ptr %b, i64 4, i1 false)",
    ],
)
def test_an_access_in_an_unknown_form_is_refused(line: str) -> None:
    with pytest.raises(UnknownAccess):
        instrument(line)


def test_sizes_of_types() -> None:
    sizes = {"i1": 1, "i8": 1, "i32": 4, "float": 4, "bfloat": 2, "ptr": 8, "<3 x half>": 6, "<8 x float>": 32}
    assert {kind: type_bytes(kind) for kind in sizes} == sizes
    assert (type_bytes("<9 x i1>"), type_bytes("[2 x [3 x i16]]"), type_bytes("[2 x <4 x float>]")) == (2, 12, 32)


def test_sites_keep_file_and_line() -> None:
    assert decode(encode("body", 1, 1)) == ("body", 1)
    assert decode(encode("header", 5000, 80)) == ("header", 5000)
    assert decode(0) is None
