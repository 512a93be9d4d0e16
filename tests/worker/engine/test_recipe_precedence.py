"""One recipe per request: request > profile > card > generation_config.json > default, each value with its source."""

from typing import Any

import pytest
from engine_maker import EngineFor
from prefix_requests import request
from tiny_models import VOCABULARY

from api.schemas import GenerationRequest, NamedProfile, ResolvedValue
from worker.engine.prompt import prompt_tokens
from worker.engine.recipe import resolve, with_profile

LAYERS = ["request", "profile", "card", "model", "default"]
VALUES = {"request": 0.1, "profile": 0.2, "card": 0.3, "model": 0.4, "default": 0.0}


def resolved(asked: GenerationRequest, **recipe: ResolvedValue) -> dict[str, tuple[Any, str]]:
    values = resolve(with_profile(asked), recipe)
    return {name: (value.value, value.source) for name, value in values.items()}


@pytest.mark.parametrize("missing", range(len(LAYERS)), ids=[f"from the {layer}" for layer in LAYERS])
def test_the_first_layer_that_says_something_wins(missing: int) -> None:
    """With the first `missing` layers silent, the value is that of the next one."""
    speaks = LAYERS[missing:]
    asked = request(
        temperature=VALUES["request"] if "request" in speaks else None,
        profile=NamedProfile(name="p", temperature=VALUES["profile"] if "profile" in speaks else None),
    )
    source = "card" if "card" in speaks else "model"
    recipe = {"temperature": ResolvedValue(value=VALUES[source], source=source)} if source in speaks else {}
    assert resolved(asked, **recipe)["temperature"] == (VALUES[speaks[0]], speaks[0])


def test_each_value_is_resolved_by_itself() -> None:
    asked = request(top_p=0.9, profile=NamedProfile(name="p", top_p=0.5, top_k=7))
    found = resolved(asked, top_k=ResolvedValue(value=3, source="card"), min_p=ResolvedValue(value=0.1, source="card"))
    names = ("top_p", "top_k", "min_p", "temperature")
    assert [found[name] for name in names] == [(0.9, "request"), (7, "profile"), (0.1, "card"), (0.0, "default")]


def test_a_request_that_repeats_its_profiles_value_is_its_own_source() -> None:
    assert resolved(request(top_p=0.5, profile=NamedProfile(name="p", top_p=0.5)))["top_p"] == (0.5, "request")


def test_zero_and_an_empty_bias_are_said_not_silent() -> None:
    profile = NamedProfile(name="p", temperature=1.0, top_k=9, logit_bias={3: 1.0}, thinking=True)
    asked = with_profile(request(temperature=0, top_k=0, logit_bias={}, thinking=False, profile=profile))
    assert (asked.temperature, asked.top_k, asked.logit_bias, asked.thinking) == (0, 0, {}, False)


def test_a_profile_lends_thinking_effort_and_bias() -> None:
    profile = NamedProfile(name="p", thinking=True, reasoning_effort="high", logit_bias={3: -2.0})
    asked = with_profile(request(profile=profile))
    assert (asked.thinking, asked.reasoning_effort, asked.logit_bias) == (True, "high", {3: -2.0})


def test_a_profile_of_thinking_reaches_the_chat_template() -> None:
    class Template:
        has_chat_template = True

        def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
            self.options = options
            return [1]

    template = Template()
    prompt_tokens(with_profile(request(raw=False, profile=NamedProfile(name="p", thinking=True))), template)
    assert template.options["enable_thinking"] is True


def test_the_text_of_a_profile_is_that_of_its_values(llama: Any, engine_for: EngineFor) -> None:
    engine = engine_for(llama, generation_defaults={"top_k": 3, "temperature": 0.2})
    values: dict[str, Any] = {"temperature": 0.9, "top_p": 0.8, "frequency_penalty": 0.5, "logit_bias": {40: 3.0}}
    by_profile, _ = engine.generate(request(seed=5, profile=NamedProfile(name="p", **values)))
    by_name, _ = engine.generate(request(seed=5, **values))
    without, _ = engine.generate(request(seed=5))
    assert by_profile.token_ids == by_name.token_ids != without.token_ids
    sources = {name: value.source for name, value in by_profile.sampling.items()}
    assert (sources["temperature"], sources["frequency_penalty"], sources["top_k"]) == ("profile", "profile", "model")


def test_a_bias_of_a_profile_past_the_vocabulary_is_refused(llama: Any, engine_for: EngineFor) -> None:
    profile = NamedProfile(name="p", logit_bias={VOCABULARY: 1.0})
    result, _ = engine_for(llama).generate(request(profile=profile))
    assert result.error is not None
    assert result.error.code == "invalid_token_id"
