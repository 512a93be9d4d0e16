"""CUDA texts on the host: instructions against numpy, defects planted one at a time, and asm statements as calls."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from host_runs import as_float64

from kernels.host import Defect, KernelDefects, Report, RunOptions, running
from kernels.host.cuda import cuda_kernel
from kernels.host.cuda.text import without_asm
from kernels.host.toolchain import CompileError

WARP = (32, 1, 1)
OUT = ((32, 4), mx.float32)


def run(
    source: str,
    inputs: Mapping[str, mx.array],
    out: tuple[tuple[int, ...], mx.Dtype] = OUT,
    threads: int = 32,
    shared_memory: int = 0,
    **call: Any,
) -> tuple[mx.array, Report]:
    """One block, whatever is found; `out` is the only output."""
    kernel = cuda_kernel("case", list(inputs), ["out"], source, shared_memory=shared_memory)
    with running(RunOptions(raise_on_findings=False)) as reports:
        (result,) = kernel(
            inputs=list(inputs.values()),
            output_shapes=[out[0]],
            output_dtypes=[out[1]],
            grid=(threads, 1, 1),
            threadgroup=(threads, 1, 1),
            **call,
        )
    return result, reports[0]


MATRICES = """
extern __shared__ uint4 tile[];
T* rows = reinterpret_cast<T*>(tile);
for (int i = threadIdx.x; i < 16 * 16; i += 32) rows[i] = a[i];
for (int i = threadIdx.x; i < 8 * 16; i += 32) rows[256 + i] = b[i];
__syncwarp();
uint32_t left[4], right[4];
uint32_t from = __cvta_generic_to_shared(rows + threadIdx.x % 16 * 16 + threadIdx.x / 16 * 8);
asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
             : "=r"(left[0]), "=r"(left[1]), "=r"(left[2]), "=r"(left[3]) : "r"(from) : "memory");
from = __cvta_generic_to_shared(rows + 256 + threadIdx.x % 16 * 8);
asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
             : "=r"(right[0]), "=r"(right[1]), "=r"(right[2]), "=r"(right[3]) : "r"(from) : "memory");
float d[4] = {1.0f, 2.0f, 3.0f, 4.0f};
asm("mma.sync.aligned.m16n8k16.row.col.f32.NAME.NAME.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
for (int i = 0; i < 4; ++i) {
  out[(threadIdx.x / 4 + i / 2 * 8) * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
}
"""


@pytest.mark.parametrize(("dtype", "name"), [(mx.bfloat16, "bf16"), (mx.float16, "f16")])
def test_a_product_of_loaded_matrices(dtype: mx.Dtype, name: str) -> None:
    random = np.random.default_rng(1)
    a, b = (mx.array(random.standard_normal(shape).astype(np.float32)).astype(dtype) for shape in ((16, 16), (16, 8)))
    text, template = MATRICES.replace("NAME", name), [("T", dtype)]
    product, report = run(text, {"a": a, "b": b}, ((16, 8), mx.float32), shared_memory=768, template=template)
    assert report.findings == ()
    # A lane's four sums began as 1 to 4: its two neighbours of one row, and those eight rows below.
    added = np.array([[1.0, 2.0] * 4] * 8 + [[3.0, 4.0] * 4] * 8)
    np.testing.assert_allclose(as_float64(product), as_float64(a) @ as_float64(b) + added, rtol=1e-6, atol=1e-5)


def test_lanes_vote_exchange_and_know_their_places() -> None:
    source = """
    const int at = blockIdx.x * blockDim.x + threadIdx.x, other = __shfl_xor_sync(0xffffffffu, at, 3);
    out[at * 4] = other + gridDim.x * 100;
    out[at * 4 + 1] = __any_sync(0xffffffffu, at == 7);
    out[at * 4 + 2] = static_cast<float>(x[at * x_strides[0]]);
    out[at * 4 + 3] = x_shape[0];
    """
    kernel = cuda_kernel("case", ["x"], ["out"], source, ensure_row_contiguous=False)
    with running(RunOptions()):
        (out,) = kernel(
            inputs=[mx.arange(128.0).astype(mx.float16)[::2]],
            output_shapes=[(64, 4)],
            output_dtypes=[mx.float32],
            grid=(33, 1, 1),  # whole blocks run
            threadgroup=WARP,
        )
    places = np.arange(64)
    expected = np.stack([(places ^ 3) + 200, places < 32, 2 * places, np.full(64, 64)], axis=1)
    assert np.array_equal(np.array(out), expected)


COPY = """
extern __shared__ float4 arena[];
float* const shared = reinterpret_cast<float*>(arena);
const uint32_t to = __cvta_generic_to_shared(shared + threadIdx.x * 4);
asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(x + threadIdx.x * 4), "r"(16) : "memory");
asm volatile("cp.async.commit_group;" ::: "memory");
asm volatile("cp.async.wait_group 0;" ::: "memory");
__syncthreads();
for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = shared[(threadIdx.x * 4 + i) % (blockDim.x * 4)];
"""
READ_OF_OTHERS = ("(threadIdx.x * 4 + i) %", "(threadIdx.x * 4 + i + 4) %")


def copied(*changes: tuple[str, str], shared_memory: int = 1024) -> tuple[mx.array, Report]:
    source = COPY
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    x = mx.arange(256.0)
    return run(source, {"x": x}, ((64, 4), mx.float32), threads=64, shared_memory=shared_memory)


def test_copies_arrive_when_they_are_awaited() -> None:
    out, report = copied(READ_OF_OTHERS)
    assert report.findings == ()
    assert np.array_equal(np.array(out).ravel(), np.roll(np.arange(256), -4))
    assert report.traffic["x"].most_reads == 1
    assert report.threadgroup_bytes == 1024


def test_a_copy_holds_nan_until_it_is_awaited() -> None:
    out, _ = copied(("wait_group 0", "wait_group 1"))
    assert np.isnan(np.array(out)).all()


@pytest.mark.parametrize(
    ("changes", "shared_memory", "defect"),
    [
        ([READ_OF_OTHERS, ("__syncthreads", "__syncwarp")], 1024, Defect.RACE),
        ([("x + threadIdx.x * 4)", "x + threadIdx.x * 4 + 2)")], 1024, Defect.MISALIGNED),
        ([("x + threadIdx.x * 4)", "x + threadIdx.x * 8)")], 1024, Defect.OUT_OF_BOUNDS),
        ([], 1000, Defect.OUT_OF_BOUNDS),
        ([("out[threadIdx.x * 4 + i]", "out[threadIdx.x * 4]")], 1024, Defect.UNWRITTEN_OUTPUT),
        ([("out[threadIdx.x * 4 + i]", "out[threadIdx.x * 5 + i]")], 1024, Defect.OUT_OF_BOUNDS),
        ([(READ_OF_OTHERS[0], "256 + 0 *")], 2048, Defect.UNINITIALISED_READ),
        ([("__syncthreads();", "if (threadIdx.x != 1) return; __syncthreads();")], 1024, Defect.EARLY_RETURN),
        ([], 228 * 1024, Defect.THREADGROUP_MEMORY),
        (
            [("__syncthreads();", "__shared__ float4 more[4096]; more[threadIdx.x].x = 0;")],
            1024,
            Defect.THREADGROUP_MEMORY,
        ),
    ],
)
def test_a_planted_defect_is_found(changes: list[tuple[str, str]], shared_memory: int, defect: Defect) -> None:
    _, report = copied(*changes, shared_memory=shared_memory)
    assert defect in report.defects


def test_words_are_permuted_and_combined_bit_by_bit() -> None:
    source = """
    uint32_t both, three;
    both = __byte_perm(0x33221100u, 0x77665544u, 0x5410u);
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(three) : "r"(0xf0f0u), "r"(0xff00u), "r"(0x000fu));
    out[threadIdx.x] = threadIdx.x % 2 ? both : three;
    """
    out, report = run(source, {"x": mx.zeros((8,))}, ((32,), mx.uint32))
    assert report.findings == ()
    assert out[:2].tolist() == [0xF00F, 0x55441100]


def test_findings_are_raised_with_their_line() -> None:
    kernel = cuda_kernel("case", ["x"], ["out"], "\nout[threadIdx.x] = x[threadIdx.x + 1];")
    with running(RunOptions()), pytest.raises(KernelDefects, match="body:2: out_of_bounds"):
        kernel(
            inputs=[mx.zeros((32,))],
            output_shapes=[(32,)],
            output_dtypes=[mx.float32],
            grid=WARP,
            threadgroup=WARP,
        )


@pytest.mark.parametrize(
    ("statement", "call"),
    [
        ('asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(f(x, 1)))', "ptx::ex2_approx_ftz_f32(y, f(x, 1))"),
        (
            'asm volatile("a.L2::128B.b [%1], 16, %0;" :: "r"(p ? 1 : 2), "l"(q) : "memory")',
            "ptx::a_L2__128B_b(q, 16, p ? 1 : 2)",
        ),
        ('asm volatile("bar.arrive;" ::: "memory")', "ptx::bar_arrive()"),
        ('asm("a {%0, %1}, "\n    "%0;"\n    : "+r"(x[0]), "=r"(x[1]))', "ptx::a(x[0], x[1], x[0])\n\n"),
        ('// asm("a;")', '// asm("a;")'),
    ],
)
def test_an_asm_statement_becomes_a_call(statement: str, call: str) -> None:
    assert without_asm(f"{statement};\nnext") == f"{call};\nnext"


def test_what_the_host_does_not_know_is_said() -> None:
    with pytest.raises(ValueError, match="one instruction from each asm statement"):
        without_asm('asm("a; b;")')
    with pytest.raises(CompileError, match="fence_acq_rel"):
        run('asm volatile("fence.acq_rel.gpu;");', {"x": mx.zeros((8,))})
