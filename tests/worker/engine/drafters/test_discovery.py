"""Discovery: drafters' checkpoints among the converted models and in the hub's cache that name the target."""

import os
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from mtp_checkpoints import stand_alone
from paired_checkpoints import assistant_at, dflash_at, snapshot_of, write_card, write_config

from bench.families import configuration
from worker.engine.drafters.discovery import find_drafters
from worker.engine.drafters.origin import Origin
from worker.engine.drafters.pairing import TargetFacts

QWEN = "Qwen/Qwen3.8-27B"


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, still not there."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def target(family: str = "llama", name: str = QWEN) -> TargetFacts:
    return TargetFacts(name, Origin(name, True), configuration(family), has_head=False)


def names(models: Path, facts: TargetFacts, told: list[str] | None = None) -> list[str]:
    return [found.name for found in find_drafters(models, facts, (told if told is not None else []).append)]


def aged(directory: Path, seconds: int) -> Path:
    """As if it had been written at that second."""
    os.utime(directory / "config.json", (seconds, seconds))
    return directory


def test_without_models_and_cache_there_is_nothing(models: Path) -> None:
    assert names(models, target()) == []


def test_what_names_the_target_is_found_in_both_places(models: Path, hub: Path) -> None:
    local = dflash_at(models / "drafter", QWEN)
    dflash_at(snapshot_of(hub, "z-lab/Drafter"), QWEN)
    local_one, cached = sorted(find_drafters(models, target(), pytest.fail), key=lambda one: one.place)
    assert (local_one.name, local_one.directory, local_one.place) == (str(local), local, str(models))
    assert (cached.name, cached.place) == ("z-lab/Drafter", "the hub's cache")
    assert cached.directory.samefile(hub / "models--z-lab--Drafter" / "snapshots" / cached.directory.name)
    assert str(cached) == "drafter z-lab/Drafter (dflash, found in the hub's cache)"
    assert cached.for_models == QWEN


def test_an_id_of_the_hub_names_the_target_where_the_card_is_silent(models: Path, hub: Path) -> None:
    dflash_at(snapshot_of(hub, "z-lab/Qwen3.8-27B-DFlash"))
    dflash_at(snapshot_of(hub, "z-lab/Qwen3.6-27B-DFlash"))
    dflash_at(models / "Qwen3.8-27B-DFlash")
    assert names(models, target()) == ["z-lab/Qwen3.8-27B-DFlash"]


@pytest.mark.parametrize("base", [None, "Qwen/Qwen3.6-27B"])
def test_silence_and_another_model_are_passed_over_without_a_word(models: Path, base: str | None) -> None:
    dflash_at(models / "drafter", base)
    assert list(find_drafters(models, target(), pytest.fail)) == []


def test_a_derivative_of_the_drafters_target_is_no_match(models: Path) -> None:
    dflash_at(models / "drafter", QWEN)
    abliterated = Origin("a/Qwen3.8-27B-abliterated", True, (QWEN,), "finetune")
    assert names(models, TargetFacts("t", abliterated, configuration("llama"), has_head=False)) == []


def test_models_that_answer_and_broken_configs_are_passed_over(models: Path, hub: Path) -> None:
    write_card(write_config(models / "model", configuration("llama")), base_model=QWEN)
    (write_card(models / "broken", base_model=QWEN) / "config.json").write_text("{")
    snapshot_of(hub, "z-lab/Empty")
    (hub / "models--z-lab--None").mkdir()
    assert list(find_drafters(models, target(), pytest.fail)) == []


def test_one_that_does_not_fit_is_named_with_the_field(models: Path) -> None:
    directory = dflash_at(models / "drafter", QWEN, hidden_size=128)
    told: list[str] = []
    assert names(models, target(), told) == []
    assert told == [
        f"drafter {directory} (dflash, found in {models}) is left: {directory / 'config.json'}: hidden_size is 128, "
        "but the target has 64: it is made for another target"
    ]


def test_dflash_2_comes_first_and_of_one_kind_the_newest(models: Path) -> None:
    old = aged(dflash_at(models / "a", QWEN), 1_000)
    new = aged(dflash_at(models / "b", QWEN), 2_000)
    second = aged(dflash_at(models / "c", QWEN, second=True), 500)
    assert names(models, target()) == [str(second), str(new), str(old)]


def test_dflash_comes_before_an_assistant_and_that_before_a_head(models: Path) -> None:
    """All of sizes that fit one target; which kind of model that is, is seen when they are loaded."""
    sizes: dict[str, Any] = {"hidden_size": 64, "vocab_size": configuration("gemma4_text")["vocab_size"]}
    facts = TargetFacts("t", Origin(QWEN, True), sizes, has_head=False)
    assistant = assistant_at(models / "a", QWEN)
    dflash = aged(dflash_at(models / "b", QWEN, vocab_size=sizes["vocab_size"]), 1_000)
    head = models / "c"
    head.mkdir()
    stand_alone(head, "qwen3_5")
    config = {"model_type": "qwen3_5_mtp", **sizes}
    write_card(write_config(head, config), base_model=QWEN)
    assert names(models, facts) == [str(dflash), str(assistant), str(head)]
