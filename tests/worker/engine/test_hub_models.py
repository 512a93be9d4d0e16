"""Models of the hub, from a cache on this machine laid out as the hub's client does, and no network."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import RemoteEntryNotFoundError
from tiny_models import CONFIGS, tiny_model
from toy_tokenizer import toy_tokenizer

from api.errors import ModelError
from worker.engine import hub
from worker.engine.loading import load_target
from worker.engine.models import ModelSpec

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CARD = "---\ninference:\n  parameters:\n    temperature: 0.25\n---\n"


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of org/tiny in the hub's cache; the hub itself is out of reach."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    directory = repository / "snapshots" / COMMIT
    directory.mkdir(parents=True)
    tiny_model("llama").save_weights(str(directory / "model.safetensors"))
    (directory / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    toy_tokenizer()._tokenizer.save_pretrained(directory)
    return directory


def test_a_snapshot_that_is_here_loads_with_its_card(snapshot: Path, tmp_path: Path) -> None:
    (snapshot / "README.md").write_text(CARD)
    told: list[str] = []
    target = load_target(ModelSpec("org/tiny"), tmp_path, notify=told.append)
    assert target.recipe["temperature"].model_dump() == {"value": 0.25, "source": "card"}
    assert told == []


def test_a_card_that_is_out_of_reach_is_told_and_stops_nothing(snapshot: Path, tmp_path: Path) -> None:
    told: list[str] = []
    target = load_target(ModelSpec("org/tiny"), tmp_path, notify=told.append)
    assert target.recipe == {}
    assert len(told) == 1
    assert told[0].startswith("model org/tiny: its card is not to be had, and counts as none: ")


def test_the_card_of_the_same_snapshot_is_fetched(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(repository: str, filename: str, *, revision: str) -> str:
        assert (repository, filename, revision) == ("org/tiny", "README.md", COMMIT)
        (snapshot / filename).write_text(CARD)
        return str(snapshot / filename)

    monkeypatch.setattr(hub, "hf_hub_download", fetched)
    recipe = load_target(ModelSpec("org/tiny"), tmp_path, notify=pytest.fail).recipe
    assert recipe["temperature"].source == "card"


def test_a_model_without_a_card_is_no_news(snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(*_: Any, **__: Any) -> str:
        raise RemoteEntryNotFoundError("404", response=SimpleNamespace(headers={}, request=None))  # type: ignore[arg-type]

    monkeypatch.setattr(hub, "hf_hub_download", not_there)
    assert load_target(ModelSpec("org/tiny"), tmp_path, notify=pytest.fail).recipe == {}


def test_a_model_that_is_nowhere_names_its_id_and_the_way_out(snapshot: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_target(ModelSpec("org/other"), tmp_path)
    message = str(caught.value)
    assert message.startswith("model org/other: not on this machine and not to be had from the hub (")
    assert message.endswith("check the id and the network, or give a local MLX directory")
    assert "\n" not in message
