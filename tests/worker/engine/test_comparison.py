"""Comparison: interleaved, cold, over the decode window, and true to plain decoding."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from engine_maker import EngineFor
from scripted_drafters import ScriptedDrafter, chain_of
from scripted_model import ScriptedModel, continuing
from tiny_models import VOCABULARY
from toy_requests import PROMPT, PROMPT_IDS, ids

from api.schemas import GenerationRequest, JobStats, Phases
from worker.engine.comparison import PLAIN, Measurement, Prompt, compare, summarise
from worker.engine.plain_text import Parity

TEXT = ids("abcdefghijklmnopqrstuvwxyz")


def prompt(name: str, kind: str = "", text: str = PROMPT) -> Prompt:
    request = GenerationRequest(request_id=name, prompt=text, raw=True, temperature=0.0, max_tokens=12)
    return Prompt(name, kind, request)


def answering(text: Sequence[int]) -> ScriptedModel:
    return ScriptedModel(continuing(PROMPT_IDS, text, VOCABULARY))


def ignore(_: str) -> None:
    pass


def test_every_run_measures_every_prompt_under_every_configuration_in_turning_order(engine_for: EngineFor) -> None:
    engines = {name: engine_for(answering(TEXT), nodes=1) for name in (PLAIN, "two", "three")}
    found = list(compare(engines, [prompt("a"), prompt("b")], 3, ignore))
    order = [(one.run, one.prompt, one.configuration) for one in found]
    plain, two, three = engines
    assert order == [
        *[(1, "a", name) for name in (plain, two, three)],
        *[(1, "b", name) for name in (two, three, plain)],
        *[(2, "a", name) for name in (two, three, plain)],
        *[(2, "b", name) for name in (three, plain, two)],
        *[(3, "a", name) for name in (three, plain, two)],
        *[(3, "b", name) for name in (plain, two, three)],
    ]


def test_caches_are_cold_each_time(engine_for: EngineFor) -> None:
    model = answering(TEXT)
    engine = engine_for(model, nodes=1)
    long = prompt("a", text=PROMPT)
    for _ in compare({PLAIN: engine}, [long], 2, ignore):
        answered, _ = engine.generate(long.request)
        assert answered.usage is not None
        assert answered.usage.cached_prompt_tokens > 0  # warm, as an engine is
        engine.forget()
        answered, _ = engine.generate(long.request)
        assert answered.usage is not None
        assert answered.usage.cached_prompt_tokens == 0


def test_texts_are_held_against_plain_decoding(engine_for: EngineFor) -> None:
    right, wrong = answering(TEXT), answering(ids("abcXefghijklmnop"))
    drafter = ScriptedDrafter(chain_of(TEXT, 3))
    engines = {
        PLAIN: engine_for(right, nodes=1),
        "speculative": engine_for(right, drafter=drafter, nodes=4),
        "another model": engine_for(wrong, nodes=1),
    }
    found = list(compare(engines, [prompt("a")], 1, ignore))
    by_name = {one.configuration: one for one in found}
    assert [by_name[name].parity for name in engines] == ["same", "same", "different"]
    # By hand: SHA-256 of the ids of "abcdefghijkl", which are 67 to 78 in the toy vocabulary.
    assert by_name[PLAIN].completion_tokens == 12
    assert by_name[PLAIN].sha256 == by_name["speculative"].sha256 != by_name["another model"].sha256
    assert by_name["speculative"].stats.tokens_per_pass == 4
    assert by_name["speculative"].stats.acceptance == 1


def test_plain_decoding_is_not_charged_with_the_memory_of_a_drafter(engine_for: EngineFor) -> None:
    engines = {name: engine_for(answering(TEXT), nodes=1) for name in (PLAIN, "speculative")}
    found = {one.configuration: one for one in compare(engines, [prompt("a")], 1, ignore)}
    engines["speculative"]._selected = replace(engines["speculative"]._selected, weight_bytes=2**30)
    charged = {one.configuration: one for one in compare(engines, [prompt("a")], 1, ignore)}
    memory = {name: one.stats.peak_memory_bytes for name, one in charged.items()}
    # Both run the same passes in one process, which holds the drafter all the time.
    assert memory["speculative"] - memory[PLAIN] == pytest.approx(2**30, abs=2**22)
    assert found["speculative"].stats.peak_memory_bytes == pytest.approx(memory["speculative"], abs=2**22)


def test_a_prompt_that_is_refused_is_named(llama: Any, engine_for: EngineFor) -> None:
    too_long = prompt("novel", text="x" * 9000)
    with pytest.raises(ValueError, match="novel: "):
        next(compare({PLAIN: engine_for(llama)}, [too_long], 1, ignore))


def test_what_the_first_pass_brought_is_not_in_the_decode_window() -> None:
    # Passes of 100 ms that bring one token each, and others that bring three: three times the rate, however short.
    plain = measurement(PLAIN, 1, tokens=12, decode_ms=1100.0)
    threefold = measurement("fast", 1, tokens=12, first_pass=3, decode_ms=300.0)
    assert plain.decoded == (11, 1.1)
    assert threefold.decoded == (9, 0.3)
    assert summarise([plain, threefold])[1].ratio == pytest.approx(3.0)
    assert measurement("fast", 1, tokens=3, first_pass=3).decoded == (0, 0.0)


def measurement(
    name: str,
    run: int,
    *,
    prompt: str = "a",
    kind: str = "code",
    tokens: int = 11,
    decode_ms: float = 1000.0,
    parity: Parity = "same",
    drafted: int = 0,
    accepted: int = 0,
    passes: int = 10,
    memory: int = 0,
    first_pass: int = 1,
) -> Measurement:
    """A text of `tokens` tokens of which the `first_pass` first ones came after 500 ms."""
    stats = JobStats(
        wall_ms=500.0 + decode_ms,
        ttft_ms=500.0,
        first_pass_tokens=first_pass,
        decode_tps=(tokens - first_pass) / decode_ms * 1000 if tokens > first_pass else None,
        passes=passes,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        phases=Phases(prefill=500.0, verify=decode_ms),
        peak_memory_bytes=memory,
    )
    return Measurement(name, prompt, kind, run, stats, tokens, "", parity)


def test_rates_are_those_of_the_decode_window_and_their_median_counts() -> None:
    found = [
        measurement(PLAIN, 1, decode_ms=1000.0),
        measurement(PLAIN, 2, decode_ms=800.0),
        measurement(PLAIN, 3, decode_ms=1250.0),
        measurement("fast", 1, decode_ms=500.0),
        measurement("fast", 2, decode_ms=400.0),
        measurement("fast", 3, decode_ms=5000.0),
    ]
    plain, fast = summarise(found)
    # Ten tokens after the first in 1, 0.8 and 1.25 seconds.
    assert plain.runs == pytest.approx([10.0, 12.5, 8.0])
    assert plain.decode_tps == pytest.approx(10.0)
    assert plain.ratio == 1
    assert fast.runs == pytest.approx([20.0, 25.0, 2.0])
    assert fast.ratio == pytest.approx(2.0)
    assert fast.ttft_ms == 500.0


def test_a_rate_is_compared_with_plain_decoding_in_the_same_run() -> None:
    """The clock changes from run to run: 10, 5 and 20 tokens a second plain, 11, 6 and 30 otherwise."""
    found = []
    for run, plain, fast in ((1, 10, 11), (2, 5, 6), (3, 20, 30)):
        found.append(measurement(PLAIN, run, decode_ms=10_000 / plain))
        found.append(measurement("fast", run, decode_ms=10_000 / fast))
    _, summary = summarise(found)
    assert summary.decode_tps == pytest.approx(11)
    assert summary.ratio == pytest.approx(6 / 5)


def test_a_run_s_rate_is_that_of_its_prompts_together() -> None:
    found = [
        measurement(PLAIN, 1, prompt="a", tokens=11, decode_ms=1000.0),
        measurement(PLAIN, 1, prompt="b", tokens=31, decode_ms=1000.0),
        measurement(PLAIN, 1, prompt="one word", tokens=1, decode_ms=10.0),
    ]
    (plain,) = summarise(found)
    assert plain.runs == pytest.approx([20.0])
    assert plain.prompts == 3


def test_counts_are_summed_up() -> None:
    found = [
        measurement(PLAIN, 1),
        measurement("fast", 1, prompt="a", tokens=20, passes=10, drafted=30, accepted=10, memory=7),
        measurement("fast", 1, prompt="b", tokens=40, passes=10, drafted=10, accepted=10, memory=5),
    ]
    _, fast = summarise(found)
    assert fast.acceptance == pytest.approx(20 / 40)
    assert fast.tokens_per_pass == pytest.approx(60 / 20)
    assert fast.peak_memory_bytes == 7
    assert fast.phases_ms["verify"] == 2000.0
    assert fast.phases_ms["prefill"] == 1000.0


def test_kinds_are_summed_up_apart() -> None:
    found = [
        measurement(PLAIN, 1, kind="code", decode_ms=1000.0),
        measurement("fast", 1, kind="code", decode_ms=250.0),
        measurement(PLAIN, 1, kind="open", prompt="b", decode_ms=1000.0),
        measurement("fast", 1, kind="open", prompt="b", decode_ms=2000.0),
    ]
    assert [one.ratio for one in summarise(found, "code")] == [1, pytest.approx(4.0)]
    assert [one.ratio for one in summarise(found, "open")] == [1, pytest.approx(0.5)]
    assert [(one.kind, one.configuration) for one in summarise(found, "open")] == [("open", PLAIN), ("open", "fast")]


def test_summaries_come_in_the_order_of_the_configurations() -> None:
    order = [measurement(name, 1, kind=kind) for kind, names in (("x", "abc"), ("y", "bca")) for name in names]
    order = [measurement(PLAIN, 1, kind="x"), *order, measurement(PLAIN, 1, kind="y")]
    for kind in (None, "x", "y"):
        assert [one.configuration for one in summarise(order, kind)] == [PLAIN, "a", "b", "c"]


def test_a_prompt_counts_by_its_worst_run() -> None:
    found = [
        measurement(PLAIN, 1, parity="same"),
        measurement(PLAIN, 2, parity="different"),
        measurement(PLAIN, 3, parity="same"),
        measurement(PLAIN, 1, prompt="b", parity="near tie"),
        measurement(PLAIN, 2, prompt="b", parity="same"),
    ]
    (plain,) = summarise(found)
    assert plain.parity == {"same": 0, "near tie": 1, "different": 1}


def test_texts_without_a_decode_window_have_no_rate() -> None:
    (plain, fast) = summarise([measurement(PLAIN, 1, tokens=1), measurement("fast", 1, tokens=1)])
    assert (plain.runs, plain.decode_tps, plain.ratio, fast.ratio) == ([], None, None, None)
