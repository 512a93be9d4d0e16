"""What a model's own files say of sampling: card over generation_config.json, bad values named, doubts told."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.errors import ExitCode, ModelError
from worker.engine.model_recipe import model_recipe

DERIVED = "base_model: org/base\n"
GREEDY_CARD = "inference:\n  parameters:\n    temperature: 0\n    repetition_penalty: 1.15\n    max_new_tokens: 99\n"


def write(directory: Path, front_matter: str | None = None, config: Any = None) -> Path:
    if front_matter is not None:
        (directory / "README.md").write_text(f"---\n{front_matter}---\n\n# A model\n\ntemperature: 0.9\n", "utf-8")
    if config is not None:
        (directory / "generation_config.json").write_text(json.dumps(config), "utf-8")
    return directory


def recipe_of(directory: Path) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    """Value and source of each name, and what the user was told."""
    told: list[str] = []
    recipe = model_recipe(directory, told.append)
    return {name: (resolved.value, resolved.source) for name, resolved in recipe.items()}, told


def test_a_directory_that_says_nothing_has_no_recipe(tmp_path: Path) -> None:
    assert recipe_of(tmp_path) == ({}, [])


def test_generation_config_gives_its_sampling_values(tmp_path: Path) -> None:
    write(tmp_path, config={"temperature": 0.7, "top_p": 0.8, "top_k": None, "eos_token_id": 2, "max_length": 9})
    assert recipe_of(tmp_path) == ({"temperature": (0.7, "model"), "top_p": (0.8, "model")}, [])


def test_a_model_that_does_not_sample_is_greedy(tmp_path: Path) -> None:
    write(tmp_path, config={"temperature": 0.7, "top_k": 20, "do_sample": False})
    assert recipe_of(tmp_path)[0] == {"temperature": (0.0, "model"), "top_k": (20, "model")}


def test_the_card_overrides_what_came_along_from_the_base_model(tmp_path: Path) -> None:
    write(tmp_path, DERIVED + GREEDY_CARD, {"temperature": 1.0, "repetition_penalty": 1.0})
    expected = {"temperature": (0, "card"), "repetition_penalty": (1.15, "card")}
    assert recipe_of(tmp_path) == (expected, [])


def test_what_the_card_leaves_open_is_taken_from_the_config_with_a_word_of_doubt(tmp_path: Path) -> None:
    write(tmp_path, DERIVED + GREEDY_CARD, {"temperature": 1.0, "top_p": 0.95, "top_k": 20})
    recipe, told = recipe_of(tmp_path)
    assert (recipe["temperature"], recipe["top_p"], recipe["top_k"]) == ((0, "card"), (0.95, "model"), (20, "model"))
    assert told == [
        f"{tmp_path / 'README.md'}: this model is derived from org/base, and generation_config.json gives top_p 0.95, "
        "top_k 20: perhaps the base model's values; where they are wrong, give others with --profile"
    ]


@pytest.mark.parametrize(
    ("front_matter", "names"),
    [
        (DERIVED, "org/base"),
        ("base_model: [org/one, org/two]\nbase_model_relation: merge\n", "org/one, org/two"),
        ("base_model:\n- org/base\ninference: false\n", "org/base"),
    ],
)
def test_a_derivative_whose_card_states_no_values_may_have_its_bases(
    tmp_path: Path, front_matter: str, names: str
) -> None:
    write(tmp_path, front_matter, {"temperature": 1.0})
    recipe, told = recipe_of(tmp_path)
    assert recipe == {"temperature": (1.0, "model")}
    assert len(told) == 1
    assert f"derived from {names}, and generation_config.json gives temperature 1.0" in told[0]


@pytest.mark.parametrize(
    ("front_matter", "config"),
    [
        (DERIVED, {"eos_token_id": 2}),
        (DERIVED, None),
        ("license: mit\n", {"temperature": 1.0}),
        (DERIVED + "base_model_relation: quantized\n", {"temperature": 1.0}),
        ("base_model:\n", {"temperature": 1.0}),
    ],
    ids=["nothing to doubt", "no config", "no base", "only quantized", "an empty base"],
)
def test_nobody_is_told_without_a_reason(tmp_path: Path, front_matter: str, config: Any) -> None:
    assert recipe_of(write(tmp_path, front_matter, config))[1] == []


@pytest.mark.parametrize(
    "front_matter",
    ["a: [\n", "a: b: c\n", "- a\n- b\n", "when: !!timestamp never\n", "tag: !!python/object/apply:os.getcwd []\n"],
)
def test_a_broken_front_matter_is_named_and_stops_nothing(tmp_path: Path, front_matter: str) -> None:
    recipe, told = recipe_of(write(tmp_path, front_matter, {"top_p": 0.5}))
    assert recipe == {"top_p": (0.5, "model")}
    assert len(told) == 1
    assert told[0].startswith(f"{tmp_path / 'README.md'}: its front matter cannot be read")
    assert "\n" not in told[0]


@pytest.mark.parametrize(
    "content", [b"", b"# Only prose\n", b"---\n---\nText\n", b"inference:\n  parameters:\n    temperature: 1\n"]
)
def test_a_readme_without_facts_is_no_card(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "README.md").write_bytes(content)
    assert recipe_of(tmp_path) == ({}, [])


def test_a_readme_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"---\nbase_model: caf\xe9\n---\n")
    recipe, told = recipe_of(tmp_path)
    assert recipe == {}
    assert told[0].startswith(f"{tmp_path / 'README.md'}: ")


@pytest.mark.parametrize("inference", ["true", "[1, 2]", "\n  parameters: 5", "\n  parameters:\n  - temperature"])
def test_other_things_under_inference_are_no_values(tmp_path: Path, inference: str) -> None:
    assert recipe_of(write(tmp_path, f"inference: {inference}\n")) == ({}, [])


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"temperature": -1}, "temperature is -1: Input should be greater than or equal to 0"),
        ({"top_p": 0}, "top_p is 0: Input should be greater than 0"),
        ({"top_k": "20"}, 'top_k is "20": Input should be a valid integer'),
        ({"min_p": True}, "min_p is true: Input should be a valid number"),
        ({"do_sample": False, "repetition_penalty": 0}, "repetition_penalty is 0: Input should be greater than 0"),
        ([], "not a JSON object"),
    ],
)
def test_a_value_of_the_config_that_cannot_be_used_is_an_error(tmp_path: Path, config: Any, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        recipe_of(write(tmp_path, config=config))
    assert str(caught.value).startswith(f"{tmp_path / 'generation_config.json'}: {says}")
    assert caught.value.exit_code == ExitCode.MODEL_UNUSABLE


def test_a_value_of_the_card_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "inference:\n  parameters:\n    top_p: 1.5\n", {"top_p": 0.9})
    with pytest.raises(ModelError) as caught:
        recipe_of(tmp_path)
    says = "top_p is 1.5: Input should be less than or equal to 1; repair the value or delete it"
    assert str(caught.value) == f"{tmp_path / 'README.md'}: {says}"
