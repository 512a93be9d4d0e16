"""Adoption: a drafter that has to be measured before it is used."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_maker import EngineFor

from worker.engine.adoption import Adoption
from worker.engine.engine import Engine


@pytest.mark.parametrize(
    ("adoption", "adopted"),
    [
        (Adoption(1.15, 1.15, texts_differ=False), True),
        (Adoption(1.14, 1.15, texts_differ=False), False),
        (Adoption(3.00, 1.15, texts_differ=True), False),
        (Adoption(None, 1.15, texts_differ=False), False),
        (Adoption(0.90, 0.80, texts_differ=False), True),
    ],
)
def test_it_takes_the_rate_and_the_same_texts(adoption: Adoption, adopted: bool) -> None:
    assert adoption.is_adopted is adopted
    assert ("not adopted" not in str(adoption)) is adopted


def test_a_verdict_is_kept_per_drafter(llama: Any, engine_for: EngineFor, tmp_path: Path) -> None:
    target = engine_for(llama).target
    assert Adoption.find(tmp_path, target, "auto") is None
    for verdict in (Adoption(1.5, 1.15, False), Adoption(None, 1.2, True)):
        verdict.store(tmp_path, target, "auto")
        assert Adoption.find(tmp_path, target, "auto") == verdict
    assert Adoption.find(tmp_path, target, "suffix") is None
    assert Adoption.find(tmp_path, replace(target, identity="other weights"), "auto") is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"ratio": "fast", "threshold": 1, "texts_differ": false}'])
def test_a_broken_verdict_is_none(llama: Any, engine_for: EngineFor, tmp_path: Path, text: str) -> None:
    target = engine_for(llama).target
    Adoption(1.5, 1.15, False).store(tmp_path, target, "auto").write_text(text)
    assert Adoption.find(tmp_path, target, "auto") is None


def measured(engine: Engine) -> tuple[str, list[str]]:
    """The drafter that an engine uses when it adopts only what was measured, and what it says."""
    notices: list[str] = []
    engine._notify = notices.append
    return engine.with_options(replace(engine.options, adopt="measured")).drafter.name, notices


def test_an_engine_can_be_told_to_adopt_only_what_was_measured(
    llama: Any, engine_for: EngineFor, tmp_path: Path
) -> None:
    engine = engine_for(llama)
    drafter, (notice,) = measured(engine)
    assert drafter == "none"
    assert notice == (
        "decoding plainly, without drafter suffix: it was not measured here; "
        "to measure it, run cidermill bench --drafter auto --model tiny"
    )
    Adoption(1.02, 1.15, False).store(tmp_path, engine.target, engine.drafter_key)
    drafter, (notice,) = measured(engine)
    assert drafter == "none"
    assert "1.02 times the rate of plain decoding: not adopted" in notice
    Adoption(1.3, 1.15, False).store(tmp_path, engine.target, engine.drafter_key)
    assert measured(engine) == ("suffix", [])


def test_without_being_told_an_engine_speculates(llama: Any, engine_for: EngineFor, tmp_path: Path) -> None:
    engine = engine_for(llama)
    Adoption(0.5, 1.15, True).store(tmp_path, engine.target, engine.drafter_key)
    assert engine.with_options(engine.options).drafter.name == "suffix"
