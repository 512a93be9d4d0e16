"""No barrier of the Metal variants can be spared."""

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from qmm_problems import Problem

from kernels.host import Defect, HostKernel, RunOptions, metal_kernel, running
from kernels.qmm.metal import Name, product

BARRIER = re.compile(r"(?:simdgroup|threadgroup)_barrier\(.*?\);")
BARRIERS = 3


def without_barrier(index: int) -> Callable[..., HostKernel]:
    """A factory of kernels that lack one barrier, by its place in the text."""

    def factory(*, source: str, **rest: Any) -> HostKernel:
        barriers = list(BARRIER.finditer(source))
        assert len(barriers) == BARRIERS
        begin, end = barriers[index].span()
        return metal_kernel(source=source[:begin] + source[end:], **rest)

    return factory


@pytest.mark.parametrize("index", range(BARRIERS))
@pytest.mark.parametrize("name", ["simdgroup", "tensor"])
def test_a_missing_barrier_is_a_race(name: Name, index: int) -> None:
    with running(RunOptions(raise_on_findings=False, static_checks=False)) as reports:
        Problem(11, 32, 512, 64, 4, mx.bfloat16).run(product(name, without_barrier(index)))
    assert Defect.RACE in reports[0].defects
