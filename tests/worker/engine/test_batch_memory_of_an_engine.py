"""Earlier answers of a batch in whole requests: they save passes, and change no text."""

from collections.abc import Sequence
from typing import Any

import pytest
from engine_maker import EngineFor
from scripted_model import ScriptedModel, one_hot
from tiny_models import VOCABULARY
from toy_requests import ids, request

from api.schemas import GenerationResult, JobStats
from worker.engine.engine import Engine

ANSWER = ids("thequickbrownfoxjumps")
LENGTH = len(ANSWER)


def answering(prefix: Sequence[int]) -> list[float]:
    """A target that gives every prompt of three tokens the same answer."""
    return one_hot(VOCABULARY, ANSWER[max(0, min(len(prefix) - 3, LENGTH - 1))])


def generate(engine: Engine, identity: str, prompt: str = "ab:", **values: Any) -> tuple[GenerationResult, JobStats]:
    asked = request(**{"request_id": identity, "prompt": prompt, "max_tokens": LENGTH, **values})
    result, stats = engine.generate(asked)
    assert result.error is None
    return result, stats


def passes(engine: Engine, identity: str, prompt: str = "ab:", **values: Any) -> int:
    result, stats = generate(engine, identity, prompt, **values)
    assert result.token_ids == ANSWER * len(result.choices) or values
    return stats.passes


@pytest.fixture
def engine(engine_for: EngineFor) -> Engine:
    return engine_for(ScriptedModel(answering))


def test_a_second_answer_of_the_batch_takes_few_passes(engine: Engine) -> None:
    assert passes(engine, "batch_1-0", "ab:") > 15
    # Another prompt, that ends alike: sixteen nodes a pass, the root among them.
    assert passes(engine, "batch_1-1", "xy:") == 2


def test_another_batch_knows_nothing_of_it(engine: Engine) -> None:
    alone = passes(engine, "batch_1-0")
    assert passes(engine, "batch_2-0", "xy:") == alone
    assert passes(engine, "batch_1-1", "vw:") == 2


def test_a_request_of_no_batch_neither_gives_nor_takes(engine: Engine) -> None:
    alone = passes(engine, "one", "ab:")
    assert passes(engine, "other", "xy:") == alone
    assert passes(engine, "batch_1-0", "vw:") == alone


def test_it_can_be_turned_off(engine_for: EngineFor) -> None:
    engine = engine_for(ScriptedModel(answering), batch_memory=False)
    assert passes(engine, "batch_1-0", "ab:") == passes(engine, "batch_1-1", "xy:")


def test_a_forgetful_engine_starts_anew(engine: Engine) -> None:
    alone = passes(engine, "batch_1-0", "ab:")
    engine.forget()
    assert passes(engine, "batch_1-1", "xy:") == alone


def test_engines_over_one_model_have_memories_of_their_own(engine: Engine) -> None:
    alone = passes(engine, "batch_1-0", "ab:")
    assert passes(engine.with_options(engine.options), "batch_1-1", "xy:") == alone


def test_later_choices_know_the_first(engine: Engine) -> None:
    alone = passes(engine, "batch_1-0")
    engine.forget()
    _, stats = generate(engine, "batch_1-0", n=3)
    assert stats.passes == alone + 2 + 2


def test_a_cancelled_answer_is_not_remembered(engine: Engine) -> None:
    alone = passes(engine, "batch_1-0")
    engine.forget()
    asked = request(request_id="batch_1-0", prompt="ab:", max_tokens=LENGTH)
    steps = iter(range(100))
    result, _ = engine.generate(asked, should_stop=lambda: next(steps) > 12)
    assert result.cancelled
    assert 5 < len(result.token_ids) < LENGTH
    assert passes(engine, "batch_1-1", "xy:") == alone


@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"temperature": 0.9, "top_k": 20}], ids=str)
def test_texts_are_the_same_with_and_without_it(engine_for: EngineFor, llama: Any, values: dict[str, Any]) -> None:
    answers: dict[bool, list[list[int]]] = {}
    total: dict[bool, int] = {}
    for remembers in (True, False):
        engine = engine_for(llama, batch_memory=remembers)
        asked = [(f"batch_1-{number % 3}", ["one:", "two:", "three:"][number % 3]) for number in range(6)]
        done = [generate(engine, *each, max_tokens=40, ignore_eos=True, **values) for each in asked]
        answers[remembers] = [result.token_ids for result, _ in done]
        total[remembers] = sum(stats.passes for _, stats in done)
    assert answers[True] == answers[False]
    assert total[True] < total[False]
