"""Options behind a drafter's name: what they change, and what is said of those that make no sense."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gemma_assistant_checkpoints as gemma
import mlx.nn as nn
import pytest
from dflash_checkpoints import FULL, first_config, random_tensors, second_config
from dflash_checkpoints import write as write_dflash
from engine_maker import EngineFor
from mtp_checkpoints import raw_model, target
from test_draft_model_loading import write_model

from api.errors import ModelError
from bench.families import tiny_model, vocabulary
from worker.engine.drafters.choice import DrafterLoader
from worker.engine.drafters.dflash import DFlashSettings
from worker.engine.drafters.options import Options
from worker.engine.verify.taps import head_and_inner


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("suffix", "suffix"),
        ("org/model@bfloat16", "org/model@bfloat16"),
        ("org/model@bfloat16:depth=4,beam=2", "org/model@bfloat16"),
        ("/models/v1:2/head", "/models/v1:2/head"),
        ("/models/v1:2/head:depth=4", "/models/v1:2/head"),
    ],
)
def test_a_part_is_a_name_and_options(part: str, name: str) -> None:
    found, options = Options.split(part)
    assert found == name
    assert options.integer("depth", 7, 1, 9) == (4 if "depth" in part else 7)
    assert options.integer("beam", 7, 1, 9) == (2 if "beam" in part else 7)
    options.close()


@pytest.mark.parametrize("listed", ["", "depth", "depth=", "=4", "depth=4,", "depth=4,depth=5", "depth=4,beam"])
def test_what_is_no_list_of_options_says_how_they_go(listed: str) -> None:
    with pytest.raises(ModelError, match=r"is no option; they go like mtp:depth=4,beam=2, each once"):
        Options.split(f"mtp:{listed}")


def dflash_loader(
    engine_for: EngineFor, tmp_path: Path, told: list[str] | None = None, family: str = "llama", second: bool = True
) -> DrafterLoader:
    """Over a target of `family`; a block drafter for it is in `drafter`."""
    model = tiny_model(family)
    config = (second_config if second else first_config)([FULL, FULL], len(model.layers), is_causal=False)
    write_dflash(tmp_path / "drafter", config, random_tensors(config))
    return DrafterLoader(engine_for(model).target, tmp_path, None, (told if told is not None else []).append)


def settings_of(drafter: Any) -> DFlashSettings:
    settings = drafter._settings
    assert isinstance(settings, DFlashSettings)
    return settings


def test_without_options_a_block_drafter_is_what_its_checkpoint_says(engine_for: EngineFor, tmp_path: Path) -> None:
    drafter: Any = dflash_loader(engine_for, tmp_path).load(str(tmp_path / "drafter"))
    assert settings_of(drafter) == DFlashSettings(addressable=97)
    assert drafter.guessed_tokens is None
    assert not any(isinstance(part, nn.QuantizedLinear) for part in drafter._backbone.modules())


def test_a_block_drafter_takes_bits_mask_block_and_vocabulary(engine_for: EngineFor, tmp_path: Path) -> None:
    word = f"suffix+{tmp_path / 'drafter'}:bits=8,mask=causal,block=7,vocabulary=40"
    mixture: Any = dflash_loader(engine_for, tmp_path).load(word)
    drafter = mixture.drafters[1]
    settings = settings_of(drafter)
    assert (settings.mask, settings.block_size, settings.bits) == ("causal", 7, 8)
    assert drafter._backbone.layers[0].self_attn.q_proj.bits == 8
    assert drafter._slots == 6
    # The first forty, and what was added to them: the toy tokenizer's end of a text is among them.
    assert drafter.guessed_tokens == 40


def test_tokens_that_were_added_are_always_guessed_from() -> None:
    tokenizer = SimpleNamespace(added_tokens_decoder={2: "<s>", 90: "</s>", 95: "<think>", 99: "beyond"})
    _, options = Options.split("d:vocabulary=4")
    assert DFlashSettings.asked(options, tokenizer, 97).vocabulary == [0, 1, 2, 3, 90, 95]


def test_a_head_that_cannot_be_cut_down_is_told(engine_for: EngineFor, tmp_path: Path) -> None:
    told: list[str] = []
    loader = dflash_loader(engine_for, tmp_path, told, family="gemma2", second=False)
    loader.load(f"{tmp_path / 'drafter'}:vocabulary=40")
    assert [line.partition(": ")[2] for line in told] == [
        "vocabulary has no effect, as the head of tiny is of no use in part"
    ]


def test_a_head_takes_depth_beam_and_the_state_it_reads(engine_for: EngineFor, tmp_path: Path) -> None:
    raw_model(tmp_path, "qwen3_5")
    loader = DrafterLoader(replace(engine_for(target("qwen3_5")).target, directory=tmp_path), tmp_path)
    _, inner = head_and_inner(target("qwen3_5"))
    plain: Any = loader.load("mtp")
    assert (plain._expansion.depth, plain._expansion.beam) == (3, 4)
    assert plain.taps._order == [inner]
    asked: Any = loader.load("mtp:depth=6,beam=2,hidden=residual")
    assert (asked._expansion.depth, asked._expansion.beam) == (6, 2)
    assert asked.taps._order == [inner.layers[-1]]


def test_an_assistant_takes_depth_beam_and_positions(engine_for: EngineFor, tmp_path: Path) -> None:
    config = gemma.config_of(vocabulary("gemma4_text"))
    gemma.write(tmp_path / "drafter", config, gemma.tensors_of(config))
    loader = DrafterLoader(engine_for(tiny_model("gemma4_text")).target, tmp_path)
    drafter: Any = loader.load(f"{tmp_path / 'drafter'}:depth=2,beam=1,positions=advancing")
    settings = drafter._settings
    assert (settings.expansion.depth, settings.expansion.beam, settings.positions) == (2, 1, "advancing")
    assert (settings.expansion.children, settings.expansion.min_value) == (4, 0.05)


def test_a_draft_model_takes_depth_and_beam(engine_for: EngineFor, tmp_path: Path) -> None:
    directory = write_model(tmp_path / "draft", seed=4)
    drafter: Any = DrafterLoader(engine_for(tiny_model("llama")).target, tmp_path).load(f"{directory}:depth=9,beam=1")
    assert (drafter._expansion.depth, drafter._expansion.beam, drafter._expansion.children) == (9, 1, 3)


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("bits=5", "bits is '5'; expected 4 or 8"),
        ("mask=true", "mask is 'true'; expected checkpoint or causal or bidirectional"),
        ("block=1", "block is '1'; expected a whole number from 2 to 64"),
        ("vocabulary=98", "vocabulary is '98'; expected a whole number from 1 to 97"),
        ("vocabulary=-1", "vocabulary is '-1'; expected a whole number from 1 to 97"),
        ("vocabulary=1e3", "vocabulary is '1e3'; expected a whole number from 1 to 97"),
        ("depth=3", "there is no option depth; there are bits, block, mask, vocabulary"),
    ],
)
def test_an_option_that_makes_no_sense_says_what_does(
    engine_for: EngineFor, tmp_path: Path, listed: str, message: str
) -> None:
    loader = dflash_loader(engine_for, tmp_path)
    with pytest.raises(ModelError) as caught:
        loader.load(f"{tmp_path / 'drafter'}:{listed}")
    assert str(caught.value) == f"drafter {tmp_path / 'drafter'}: {message}"


def test_the_suffix_drafter_has_no_options(engine_for: EngineFor, tmp_path: Path) -> None:
    loader = DrafterLoader(engine_for(tiny_model("llama")).target, tmp_path)
    with pytest.raises(ModelError, match="drafter suffix: there is no option depth; this one has none"):
        loader.load("suffix:depth=3")
    for word in ("auto:depth=3", "none:depth=3", "suffix:a=1+suffix:a=2"):
        with pytest.raises(ModelError, match="each once, joined by"):
            loader.load(word)


def test_what_is_learned_belongs_to_the_options(engine_for: EngineFor, tmp_path: Path) -> None:
    """Trees of another shape cost and are worth something else."""
    raw_model(tmp_path, "qwen3_5")
    engine = engine_for(target("qwen3_5"))
    words = ("mtp", "mtp:depth=2", "mtp:depth=4")
    learned = {engine.with_options(replace(engine.options, drafter=word))._learned._path for word in words}
    assert len(learned) == 3
