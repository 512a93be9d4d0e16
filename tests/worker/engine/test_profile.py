"""What was measured of a model on a machine is kept, found again, and measured anew when it is of no use."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from engine_maker import EngineFor

from worker.engine import profile
from worker.engine.budget import CostCurve
from worker.engine.loading import Target
from worker.engine.models import ModelSpec
from worker.engine.profile import Profile, Profiles, profile_key

MEASURED = Profile("chain", CostCurve((1, 2, 4), (10.0, 11.0, 15.0)), reuses_prefixes=False)


@pytest.fixture
def target(llama: Any, engine_for: EngineFor) -> Target:
    return engine_for(llama).target


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    """What was measured, each as MEASURED."""
    targets: list[Target] = []

    def measure(target: Target, *_: Any) -> Profile:
        targets.append(target)
        return MEASURED

    monkeypatch.setattr(profile, "measure_profile", measure)
    return targets


def find(
    target: Target, directory: Path, max_nodes: int = 4, notify: Callable[[str], None] = lambda _: None
) -> Profile:
    return Profiles(directory / "profiles", target, max_nodes, notify).find()


def test_the_real_measurement(target: Target, tmp_path: Path) -> None:
    found = find(target, tmp_path, max_nodes=2)
    assert (found.verification, found.curve.nodes, found.reuses_prefixes) == ("tree", (1, 2), True)
    assert 0 < found.curve.cost(1) <= found.curve.cost(2) < 1000
    (file,) = (tmp_path / "profiles").iterdir()
    assert json.loads(file.read_text())["key"] == profile_key(target, 2)


def test_a_profile_is_found_again(target: Target, tmp_path: Path, measured: list[Target]) -> None:
    assert [find(target, tmp_path) for _ in range(3)] == [MEASURED] * 3
    assert len(measured) == 1
    Profiles(tmp_path / "profiles", target, 4, print).measure()
    assert len(measured) == 2


@pytest.mark.parametrize(
    "change", [{"identity": "other"}, {"spec": ModelSpec("other")}, {"dtype": mx.bfloat16}], ids=str
)
def test_another_model_has_a_profile_of_its_own(
    target: Target, tmp_path: Path, measured: list[Target], change: dict[str, Any]
) -> None:
    find(target, tmp_path)
    find(replace(target, **change), tmp_path)
    assert len(measured) == 2


@pytest.mark.parametrize("fact", ["chip", "kernels", "mlx", "mlx_lm", "power", "quantization", "max_nodes"])
def test_another_machine_version_or_power_mode_has_a_profile_of_its_own(
    target: Target, tmp_path: Path, measured: list[Target], monkeypatch: pytest.MonkeyPatch, fact: str
) -> None:
    find(target, tmp_path)
    key = profile_key(target, 4)
    monkeypatch.setattr(profile, "profile_key", lambda *_: {**key, fact: "another"})
    find(target, tmp_path)
    assert len(measured) == 2


CURVE = {"nodes": [1, 2, 4], "milliseconds": [10.0, 11.0, 15.0]}
GOOD = {"verification": "chain", "reuses_prefixes": False, "curve": CURVE, "first_rows": 1, "last_rows": 32}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps(GOOD | {"verification": "forest"}),
        json.dumps(GOOD | {"curve": None}),
        json.dumps(GOOD | {"curve": CURVE | {"milliseconds": [10.0, float("nan"), 15.0]}}),
        json.dumps(GOOD | {"curve": CURVE | {"milliseconds": [10.0, 11.0]}}),
        json.dumps(GOOD | {"curve": CURVE | {"milliseconds": [0.0, 0.0, 0.0]}}),
    ],
)
def test_a_file_of_no_use_is_measured_anew(
    target: Target, tmp_path: Path, measured: list[Target], content: str
) -> None:
    find(target, tmp_path)
    (file,) = (tmp_path / "profiles").iterdir()
    file.write_text(content)
    assert find(target, tmp_path) == MEASURED
    assert len(measured) == 2
    assert find(target, tmp_path) == MEASURED
    assert len(measured) == 2


def test_a_directory_that_cannot_be_written_is_told_and_no_error(
    target: Target, tmp_path: Path, measured: list[Target]
) -> None:
    (tmp_path / "profiles").write_text("a file where the directory should be")
    told: list[str] = []
    assert find(target, tmp_path, notify=told.append) == MEASURED
    assert ["cannot be written" in line for line in told] == [False, True]
