"""The memory that a model can have: the machine's, or less where a control group allows less."""

import os
from pathlib import Path

import pytest

from worker.engine import machine
from worker.engine.machine import memory_bytes


def cgroup(root: Path, membership: str, limits: dict[str, str]) -> list[int]:
    """What is found for a process of `membership` under a hierarchy whose groups have these memory.max."""
    for group, limit in limits.items():
        (root / group).mkdir(parents=True, exist_ok=True)
        (root / group / "memory.max").write_text(f"{limit}\n")
    (root.parent / "membership").write_text(membership)
    return machine._cgroup_limits(root.parent / "membership", root)


def test_the_limits_are_those_of_the_own_group_and_of_the_groups_above(tmp_path: Path) -> None:
    limits = {"": "9000", "system.slice": "max", "system.slice/mill.service": "5000", "system.slice/other": "1"}
    assert cgroup(tmp_path / "root", "0::/system.slice/mill.service\n", limits) == [5000, 9000]


def test_in_a_container_the_own_group_is_the_root(tmp_path: Path) -> None:
    assert cgroup(tmp_path / "root", "0::/\n", {"": "7000"}) == [7000]


def test_version_one_groups_say_nothing(tmp_path: Path) -> None:
    assert cgroup(tmp_path / "root", "4:memory:/docker/abc\n", {"docker/abc": "7"}) == []


def test_a_machine_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert machine._cgroup_limits(tmp_path / "membership", tmp_path / "root") == []


def test_a_cpu_gives_its_memory_unless_a_group_has_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.mx, "default_device", lambda: machine.mx.cpu)
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(machine, "_cgroup_limits", lambda *_: [])
    assert memory_bytes() == physical
    monkeypatch.setattr(machine, "_cgroup_limits", lambda *_: [4096, 2 * physical])
    assert memory_bytes() == 4096


@pytest.mark.parametrize(
    ("metal", "expected"), [(True, 21), (False, 80)], ids=["Metal's recommended working set", "all of a CUDA device"]
)
def test_a_gpu_gives(monkeypatch: pytest.MonkeyPatch, metal: bool, expected: int) -> None:
    monkeypatch.setattr(machine.mx, "default_device", lambda: machine.mx.gpu)
    monkeypatch.setattr(machine.mx.metal, "is_available", lambda: metal)
    found = {"memory_size": 32, "max_recommended_working_set_size": 21} if metal else {"total_memory": 80}
    monkeypatch.setattr(machine.mx, "device_info", lambda: found)
    assert memory_bytes() == expected
