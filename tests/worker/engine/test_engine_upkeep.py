"""Between requests: what was learned is kept, and costs that no longer hold are measured again."""

import json
from pathlib import Path
from typing import Any

import pytest
from engine_maker import EngineFor
from scripted_model import ScriptedModel, continuing
from tiny_models import VOCABULARY
from toy_clock import ToyClock
from toy_requests import PROMPT_IDS, ids, request

from worker.engine.budget import CostCurve
from worker.engine.clock_watch import LOOK_SECONDS
from worker.engine.engine import Engine
from worker.engine.learned import REQUESTS_PER_WRITE

WRONG_CURVE = CostCurve((1, 2, 4), (5000.0, 6000.0, 7000.0))
TEXT = ids("abcdefgh" * 5)


def files(folder: Path, name: str) -> list[Path]:
    return sorted((folder / name).glob("*.json"))


def guesses_known_to(calibration: dict[str, Any]) -> float:
    """How many guesses a stored calibration knows of."""
    tables = [rates["tried"] for sources in calibration.values() for rates in sources.values()]
    return sum(number for table in tables for row in table for number in row)


def look(engine: Engine, clock: ToyClock) -> None:
    clock.now += LOOK_SECONDS
    engine.upkeep()


def test_costs_that_no_longer_hold_are_measured_again(llama: Any, engine_for: EngineFor, tmp_path: Path) -> None:
    engine, clock = engine_for(llama, curve=WRONG_CURVE, max_tree_nodes=4), ToyClock()
    engine.clock = clock
    engine._watch = engine._new_watch()
    engine.upkeep()
    look(engine, clock)
    assert engine.profile.curve == WRONG_CURVE
    look(engine, clock)
    # A pass of the tiny llama takes a few milliseconds, not five seconds.
    assert engine.profile.curve.nodes == (1, 2, 3, 4)
    assert engine.profile.curve.cost(1) < 1000
    assert engine.speculation.budget.curve == engine.profile.curve
    (file,) = files(tmp_path, "profiles")
    assert json.loads(file.read_text())["curve"]["milliseconds"] == list(engine.profile.curve.milliseconds)
    result, _ = engine.generate(request(max_tokens=8))
    assert result.error is None


def test_a_look_leaves_the_session_as_it_was(llama: Any, engine_for: EngineFor) -> None:
    engine, clock = engine_for(llama, curve=WRONG_CURVE, max_tree_nodes=4), ToyClock()
    first, _ = engine.generate(request(max_tokens=20))
    held = list(engine._session.tokens)
    engine.clock = clock
    look(engine, clock)
    look(engine, clock)
    assert engine._session.tokens == held
    again, _ = engine.generate(request(max_tokens=20))
    assert again.token_ids == first.token_ids


def test_an_engine_that_does_not_choose_its_budget_looks_at_no_clock(llama: Any, engine_for: EngineFor) -> None:
    for options in ({"nodes": 4}, {"curve": WRONG_CURVE, "mode": "plain"}, {"curve": WRONG_CURVE, "max_tree_nodes": 1}):
        engine, clock = engine_for(llama, **options), ToyClock()
        engine.clock = clock
        engine._watch = engine._new_watch()
        curve = engine.profile.curve
        for _ in range(4):
            look(engine, clock)
        assert engine.profile.curve == curve


@pytest.mark.parametrize(
    ("noise_guided", "temperature", "mode"),
    [(True, 0.0, "greedy"), (False, 0.0, "greedy"), (True, 0.8, "noise"), (False, 0.8, "odds")],
)
def test_guesses_are_judged_in_the_mode_of_their_request(
    engine_for: EngineFor, noise_guided: bool, temperature: float, mode: str
) -> None:
    model = ScriptedModel(continuing(PROMPT_IDS, TEXT, VOCABULARY))
    engine = engine_for(model, curve=CostCurve((1, 4), (1000.0, 1100.0)), noise_guided=noise_guided)
    engine.generate(request(max_tokens=40, temperature=temperature, seed=3))
    assert list(engine.speculation.calibration.record) == [mode]


def test_what_a_batch_taught_is_there_for_the_next_process(engine_for: EngineFor, tmp_path: Path) -> None:
    model = ScriptedModel(continuing(PROMPT_IDS, TEXT, VOCABULARY))
    first = engine_for(model, curve=CostCurve((1, 4), (1000.0, 1100.0)))
    for number in range(REQUESTS_PER_WRITE):
        assert files(tmp_path, "drafters") == [], number
        first.generate(request(max_tokens=40))
        first.upkeep()
    (file,) = files(tmp_path, "drafters")
    record = json.loads(file.read_text())
    assert (record["key"]["model"], record["key"]["drafter"]) == ("tiny", "suffix")
    assert guesses_known_to(record["calibration"]) > 50
    second = engine_for(model, curve=CostCurve((1, 4), (1000.0, 1100.0)))
    assert second.speculation.calibration.record == first.speculation.calibration.record
    first_costs, second_costs = (engine.speculation.panel.costs for engine in (first, second))
    assert {bit: cost.samples for bit, cost in second_costs.items()} == {
        bit: cost.samples for bit, cost in first_costs.items()
    }


def test_closing_keeps_what_is_not_kept_yet(engine_for: EngineFor, tmp_path: Path) -> None:
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, TEXT, VOCABULARY)))
    engine.generate(request(max_tokens=40))
    engine.upkeep()
    assert files(tmp_path, "drafters") == []
    engine.close()
    assert len(files(tmp_path, "drafters")) == 1


def test_an_engine_without_a_drafter_learns_nothing(engine_for: EngineFor, tmp_path: Path) -> None:
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, TEXT, VOCABULARY)), nodes=1)
    engine.generate(request(max_tokens=40))
    engine.upkeep()
    engine.close()
    assert files(tmp_path, "drafters") == []
