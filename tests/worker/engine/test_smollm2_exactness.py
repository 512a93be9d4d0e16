"""The real SmolLM2-135M-Instruct in float32: greedy text is mlx-lm's plain decoding, token for token."""

from pathlib import Path

import pytest
from mlx_lm.sample_utils import make_logits_processors
from plain_decoding import plain_tokens
from scripted_drafters import ScriptedDrafter, random_trees

from api.schemas import ChatMessage, GenerationRequest
from worker.engine.budget import Budget, CostCurve
from worker.engine.engine import Engine, EngineOptions
from worker.engine.loading import Target, load_target
from worker.engine.models import ModelSpec
from worker.engine.profile import Profile
from worker.engine.prompt import prompt_tokens
from worker.engine.sampling import Sampling
from worker.engine.verify.selfcheck import Verdict, decide_mode

pytestmark = pytest.mark.model

# A pass over more nodes costs little, so that a budget chosen by the curve speculates.
CURVE = CostCurve((1, 4, 16), (90.0, 100.0, 200.0))
COPYING = GenerationRequest(
    request_id="copying",
    prompt="A: 1 2 3 4\nB: 1 2 3 4\nC: 1 2 3 4\nD:",
    raw=True,
    temperature=0.0,
    max_tokens=24,
)
CHATTING = GenerationRequest(
    request_id="chatting",
    messages=[ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Name a fruit.")],
    temperature=0.0,
    max_tokens=16,
)


@pytest.fixture(scope="module")
def target(smollm2_float32_directory: Path) -> Target:
    return load_target(ModelSpec(str(smollm2_float32_directory)), smollm2_float32_directory.parent)


@pytest.fixture(scope="module")
def engine(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(target, Profile("tree", CURVE), EngineOptions(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module", params=[COPYING, CHATTING], ids=lambda request: request.request_id)
def prompt(request: pytest.FixtureRequest) -> GenerationRequest:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def expected(target: Target, prompt: GenerationRequest) -> list[int]:
    assert prompt.max_tokens
    ids = prompt_tokens(prompt, target.tokenizer)
    return plain_tokens(target.model, ids, prompt.max_tokens, end_tokens=list(target.tokenizer.eos_token_ids))


@pytest.mark.parametrize("fixed_nodes", [None, 4, 16], ids=["automatic", "4 nodes", "16 nodes"])
def test_greedy_text_is_that_of_plain_decoding(
    engine: Engine, prompt: GenerationRequest, expected: list[int], fixed_nodes: int | None
) -> None:
    engine.speculation.budget = Budget(CURVE, fixed_nodes)
    result, stats = engine.generate(prompt)
    assert result.token_ids == expected
    assert result.text == engine.target.tokenizer.decode(expected)
    assert max(stats.budgets) <= (fixed_nodes or 16)
    assert stats.verification == "tree"
    if prompt is COPYING:
        assert stats.accepted_tokens > 0
        assert stats.tokens_per_pass is not None
        assert stats.tokens_per_pass > 1.5


def test_the_selfcheck_passes(target: Target) -> None:
    assert decide_mode(target.model, target.vocabulary, target.dtype) == Verdict("tree")


@pytest.mark.parametrize("recipe", ["greedy", "sampled"])
def test_two_hundred_tokens_under_trees_of_right_and_wrong_guesses(engine: Engine, recipe: str) -> None:
    sampled = {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "seed": 2024}
    penalties = {"repetition_penalty": 1.05, "frequency_penalty": 0.1}
    request = GenerationRequest(
        request_id="story",
        messages=[ChatMessage(role="user", content="Tell a long story about a miller and a river.")],
        max_tokens=200,
        ignore_eos=True,
        **(sampled | penalties if recipe == "sampled" else {"temperature": 0.0}),
    )
    target = engine.target
    expected = plain_tokens(
        target.model,
        prompt_tokens(request, target.tokenizer),
        200,
        sampling=Sampling(**sampled) if recipe == "sampled" else None,
        processors=make_logits_processors(**penalties) if recipe == "sampled" else None,
    )
    engine.drafter = ScriptedDrafter(random_trees(expected, target.vocabulary, seed=1, right=0.85))
    engine.speculation.budget = Budget(CURVE, 6)
    result, stats = engine.generate(request)
    assert result.token_ids == expected
    assert len(expected) == 200
    assert stats.accepted_tokens > 60
    assert stats.drafted_tokens - stats.accepted_tokens > 60
