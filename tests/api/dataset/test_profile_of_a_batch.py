"""A profile is a parameter of the whole batch: every line has it, its own values and the batch's others stay theirs."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.dataset.reader import Dataset, InputLine, LineError
from api.schemas import GenerationRequest, NamedProfile
from api.submission import Order

PROFILE: dict[str, Any] = {"name": "reasoning", "temperature": 1.0, "logit_bias": {"42": 2.5}, "thinking": True}


def dataset(folder: Path, *lines: dict[str, Any], **defaults: Any) -> Dataset:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return Dataset(path, defaults=defaults)


def test_every_line_carries_the_profile_beside_its_own_values(tmp_path: Path) -> None:
    openai = {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "b", "temperature": 0.5}}
    first, second = dataset(tmp_path, {"prompt": "a"}, openai, profile=PROFILE, top_p=0.9)
    assert isinstance(first, InputLine)
    assert isinstance(second, InputLine)
    expected = NamedProfile(name="reasoning", temperature=1.0, logit_bias={42: 2.5}, thinking=True)
    assert first.body.profile == second.body.profile == expected
    assert (first.body.temperature, first.body.top_p) == (None, 0.9)
    assert (second.body.temperature, second.body.top_p) == (0.5, 0.9)


def test_the_profile_travels_as_json_and_comes_back_the_same(tmp_path: Path) -> None:
    (line,) = dataset(tmp_path, {"prompt": "a"}, profile=PROFILE)
    assert isinstance(line, InputLine)
    stored = line.body.model_dump_json(exclude_defaults=True)
    sent = GenerationRequest.model_validate({**json.loads(stored), "request_id": "r-1"})
    assert sent.profile == line.body.profile


@pytest.mark.parametrize("own", ["reasoning", {"name": "mine", "top_k": 3}])
@pytest.mark.parametrize("defaults", [{}, {"profile": PROFILE}], ids=["none", "one for the batch"])
def test_a_line_cannot_choose_another(tmp_path: Path, own: Any, defaults: dict[str, Any]) -> None:
    (line,) = dataset(tmp_path, {"prompt": "a", "profile": own}, **defaults)
    assert isinstance(line, LineError)
    assert line.message == "profile: a line cannot choose one; give --profile NAME, or the values here"


def test_a_line_that_says_null_has_the_batchs(tmp_path: Path) -> None:
    (line,) = dataset(tmp_path, {"prompt": "a", "profile": None, "temperature": None}, profile=PROFILE)
    assert isinstance(line, InputLine)
    assert line.body.profile is not None
    assert line.body.temperature is None


def test_a_mistyped_field_is_never_taken_for_the_profile(tmp_path: Path) -> None:
    (line,) = dataset(tmp_path, {"prompt": "a", "profil": "reasoning"})
    assert isinstance(line, LineError)
    assert "did you mean profile" not in line.message


def test_the_same_command_with_another_profile_is_another_batch(tmp_path: Path) -> None:
    made = [
        Order(dataset(tmp_path, {"prompt": "a"}, **defaults), "model").fingerprint()
        for defaults in ({}, {"profile": PROFILE}, {"profile": {**PROFILE, "temperature": 0.5}}, {"profile": PROFILE})
    ]
    assert made[1] == made[3]
    assert len(set(made)) == 3
