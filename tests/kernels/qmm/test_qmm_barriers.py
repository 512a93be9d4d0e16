"""No barrier of the Metal variants can be spared or weakened."""

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from qmm_problems import Problem

from kernels.host import Defect, HostKernel, RunOptions, metal_kernel, running
from kernels.qmm.metal import Name, product

BARRIER = re.compile(r"(simdgroup|threadgroup)_barrier\(mem_flags::mem_threadgroup\);")
# In the order of the text.
BARRIERS: dict[Name, list[str]] = {
    "simdgroup": ["threadgroup", "threadgroup"],
    "tensor": ["simdgroup", "simdgroup", "threadgroup"],
}
INSTEAD = {
    "missing": "",
    "without mem_flags": r"\1_barrier(mem_flags::mem_none);",
    "of other memory": r"\1_barrier(mem_flags::mem_device);",
    "of the simdgroup": "simdgroup_barrier(mem_flags::mem_threadgroup);",
}
MUTATIONS = [
    (name, index, instead)
    for name, kinds in BARRIERS.items()
    for index, kind in enumerate(kinds)
    for instead in INSTEAD
    if (kind, instead) != ("simdgroup", "of the simdgroup")
]


def with_barrier(name: Name, index: int, instead: str) -> Callable[..., HostKernel]:
    """A factory of kernels in which one barrier, by its place in the text, is another."""

    def factory(*, source: str, **rest: Any) -> HostKernel:
        barriers = list(BARRIER.finditer(source))
        assert [barrier.group(1) for barrier in barriers] == BARRIERS[name]
        assert source.count("_barrier(") == len(barriers)
        begin, end = barriers[index].span()
        return metal_kernel(source=source[:begin] + barriers[index].expand(instead) + source[end:], **rest)

    return factory


@pytest.mark.parametrize(("name", "index", "instead"), MUTATIONS)
def test_a_barrier_that_does_less_is_a_race(name: Name, index: int, instead: str) -> None:
    factory = with_barrier(name, index, INSTEAD[instead])
    with running(RunOptions(raise_on_findings=False, static_checks=False)) as reports:
        Problem(11, 32, 512, 64, 4, mx.bfloat16).run(product(name, factory))
    assert Defect.RACE in reports[0].defects
