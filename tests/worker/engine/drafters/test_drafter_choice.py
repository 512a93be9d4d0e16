"""Which drafter a word stands for: what the checkpoints say, and what the target carries."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from dflash_checkpoints import FULL, first_config, random_tensors
from dflash_checkpoints import write as write_dflash
from engine_maker import EngineFor
from mtp_checkpoints import raw_model, stand_alone, target

from api.errors import ModelError
from bench.families import tiny_model
from worker.engine.drafters.choice import DrafterLoader
from worker.engine.drafters.protocol import NoDrafter


def loader_for(engine_for: EngineFor, family: str, directory: Path) -> DrafterLoader:
    """Over a target of `family` whose files are in `directory`."""
    return DrafterLoader(replace(engine_for(target(family)).target, directory=directory), directory / "models")


def test_mtp_is_the_targets_own_head(engine_for: EngineFor, tmp_path: Path) -> None:
    raw_model(tmp_path, "qwen3_5")
    loader = loader_for(engine_for, "qwen3_5", tmp_path)
    assert loader.load("mtp").name == "mtp"
    assert loader.load("mtp+suffix").name == "mtp+suffix"


def test_a_checkpoint_is_what_its_config_says(engine_for: EngineFor, tmp_path: Path) -> None:
    model = tiny_model("llama")
    config = first_config([FULL], len(model.layers))
    write_dflash(tmp_path / "dflash", config, random_tensors(config))
    loader = DrafterLoader(engine_for(model).target, tmp_path / "models")
    assert loader.load(str(tmp_path / "dflash")).name == "dflash"
    assert loader.load(f"suffix+{tmp_path / 'dflash'}").name == "suffix+dflash"
    stand_alone(tmp_path / "head", "qwen3_5")
    assert loader_for(engine_for, "qwen3_5", tmp_path).load(str(tmp_path / "head")).name == "mtp"


def test_none_drafts_nothing(engine_for: EngineFor, tmp_path: Path) -> None:
    assert isinstance(loader_for(engine_for, "qwen3_5", tmp_path).load("none"), NoDrafter)


@pytest.mark.parametrize("choice", ["", "suffix+", "suffix+suffix", "auto+suffix", "none+mtp"])
def test_a_choice_that_makes_no_sense_says_what_does(engine_for: EngineFor, tmp_path: Path, choice: str) -> None:
    with pytest.raises(ModelError, match="give auto, none, or one or several of suffix, mtp and checkpoints"):
        loader_for(engine_for, "qwen3_5", tmp_path).load(choice)


def test_a_head_that_is_not_there_is_told(engine_for: EngineFor, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="carries no multi-token prediction head"):
        loader_for(engine_for, "qwen3_5", tmp_path / "bare").load("mtp")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5_mtp"}))
    with pytest.raises(ModelError, match="holds no tensors"):
        loader_for(engine_for, "qwen3_5", tmp_path / "bare").load(str(tmp_path))


def test_an_unknown_part_is_told_as_a_model_is(engine_for: EngineFor, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'sufix' is not there"):
        loader_for(engine_for, "qwen3_5", tmp_path).load("sufix")
