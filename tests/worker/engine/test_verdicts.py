"""What the self-check said of a model is kept for the very same model, and for no other."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from engine_maker import EngineFor

from worker.engine import verdicts
from worker.engine.loading import Target
from worker.engine.models import ModelSpec
from worker.engine.profile import profile_key
from worker.engine.verdicts import find_verdict, verdict_key
from worker.engine.verify.selfcheck import Verdict

FOUND = Verdict("chain", {"tree": "differs from one-token decoding by 0.3 of the largest logit"})


@pytest.fixture
def target(llama: Any, engine_for: EngineFor) -> Target:
    return engine_for(llama).target


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was checked, each with the verdict FOUND."""
    checked: list[Any] = []

    def decide(model: Any, *_: Any) -> Verdict:
        checked.append(model)
        return FOUND

    monkeypatch.setattr(verdicts, "decide_mode", decide)
    return checked


def test_a_verdict_is_found_again(target: Target, tmp_path: Path, checks: list[Any]) -> None:
    assert find_verdict(target, tmp_path / "verdicts") == FOUND
    assert find_verdict(target, tmp_path / "verdicts") == FOUND
    assert checks == [target.model]


@pytest.mark.parametrize(
    "change",
    [{"identity": "other"}, {"spec": ModelSpec("other")}, {"dtype": mx.bfloat16}],
    ids=lambda change: next(iter(change)),
)
def test_another_model_is_checked_itself(
    target: Target, tmp_path: Path, checks: list[Any], change: dict[str, Any]
) -> None:
    find_verdict(target, tmp_path / "verdicts")
    find_verdict(replace(target, **change), tmp_path / "verdicts")
    assert len(checks) == 2


@pytest.mark.parametrize("name", ["chip", "mlx", "mlx_lm", "kernels", "verification"])
def test_another_machine_or_version_is_checked_itself(
    target: Target, tmp_path: Path, checks: list[Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    find_verdict(target, tmp_path / "verdicts")
    key = verdict_key(target)
    monkeypatch.setattr(verdicts, "verdict_key", lambda _: {**key, name: "another"})
    find_verdict(target, tmp_path / "verdicts")
    assert len(checks) == 2


def test_a_curve_depends_on_all_that_a_verdict_does(target: Target) -> None:
    assert verdict_key(target).items() < profile_key(target, 16).items()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"mode": "forest", "refused": {}}', '{"mode": "tree", "refused": ["chain"]}']
)
def test_a_broken_file_is_written_anew(target: Target, tmp_path: Path, checks: list[Any], content: str) -> None:
    find_verdict(target, tmp_path / "verdicts")
    (file,) = (tmp_path / "verdicts").iterdir()
    whole = json.loads(file.read_text())
    file.write_text(content)
    assert find_verdict(target, tmp_path / "verdicts") == FOUND
    assert len(checks) == 2
    assert json.loads(file.read_text()) == whole


def test_a_directory_that_cannot_be_written_is_told_and_no_error(
    target: Target, tmp_path: Path, checks: list[Any]
) -> None:
    (tmp_path / "verdicts").write_text("a file where the directory should be")
    told: list[str] = []
    assert find_verdict(target, tmp_path / "verdicts", told.append) == FOUND
    assert ["cannot be written" in line for line in told] == [True]
