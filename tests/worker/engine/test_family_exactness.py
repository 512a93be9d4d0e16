"""Every family that mlx-lm loads: under trees, with penalties and sampled, the text is that of plain decoding."""

import pytest
from engine_maker import EngineFor
from family_exactness import Case, engine_under_trees

from bench.families import FAMILIES, table, tiny_model
from worker.engine.verify.verifier import Mode

RUNNABLE = [name for name, family in FAMILIES.items() if family.cannot_run is None]
DOCUMENTED = table.PATH.read_text().splitlines()
MODES: dict[str, Mode] = {"tree": "tree", "chain": "chain", "plain": "plain"}
SAMPLED = {
    "temperature": 0.9,
    "top_p": 0.97,
    "top_k": 40,
    "seed": 11,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.2,
    "penalty_context_size": 32,
    "logit_bias": {9: 1.5},
}


@pytest.mark.parametrize("family", RUNNABLE)
def test_the_text_is_that_of_plain_decoding(engine_for: EngineFor, family: str) -> None:
    model = tiny_model(family)
    (mode,) = (MODES[line.split(" | ")[2]] for line in DOCUMENTED if line.startswith(f"| `{family}` |"))
    for case in (Case(), Case(sampling=SAMPLED)):
        expected = case.plain(model)
        engine = engine_under_trees(engine_for, model, mode, expected, seed=3)
        for start in ("cold", "warm"):
            result, stats = engine.generate(case.request)
            assert result.token_ids == expected, start
            assert stats.verification == mode
            assert (stats.accepted_tokens > 40) == (mode != "plain")
            assert (stats.drafted_tokens - stats.accepted_tokens > 40) == (mode != "plain")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_documented_way_of_verification_is_that_of_the_code(family: str) -> None:
    assert table.rows_of([family])[-1] in DOCUMENTED
