"""Selection: a wrong pairing is used only after a good verdict, and `auto` takes a checkpoint that names the target."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from engine_maker import EngineFor
from huggingface_hub import constants
from mlx.utils import tree_flatten
from mtp_checkpoints import raw_model
from mtp_checkpoints import target as mtp_target
from paired_checkpoints import assistant_at, dflash_at, snapshot_of, write_card, write_config
from test_draft_model_loading import write_model

from api.errors import ModelError
from bench.families import configuration, tiny_model
from worker.engine.adoption import Adoption
from worker.engine.engine import Engine
from worker.engine.models import ModelSpec

QWEN, OTHER = "Qwen/Qwen3.8-27B", "Qwen/Qwen3.6-27B"
CONVERSION = "mlx-community/Qwen3.8-27B-4bit"
GOOD = Adoption(1.5, 1.15, texts_differ=False)
BAD = Adoption(0.5, 1.15, texts_differ=False)
NOT_MEASURED = "it was not measured here; to measure it, run cidermill bench --drafter {} --model {}"

EngineAt = Callable[..., Engine]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache. Nothing is to be had from the hub itself."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def engine_at(engine_for: EngineFor, hub: Path, told: list[str]) -> EngineAt:
    """engine_at(directory, family, options): an engine over a target whose files are there; `told` is what it said."""

    def make(directory: Path, family: str = "llama", **options: Any) -> Engine:
        model = mtp_target(family) if family.startswith("qwen3_5") else tiny_model(family)
        plain = engine_for(model, max_tree_nodes=1)
        target = replace(plain.target, directory=directory, spec=ModelSpec(CONVERSION))
        options.setdefault("max_tree_nodes", 16)
        return Engine(target, plain.profile, replace(plain.options, **options), told.append)

    return make


@pytest.fixture
def target(tmp_path: Path, hub: Path) -> Path:
    """The directory of a tiny llama that says that it is a conversion of QWEN."""
    return write_card(write_config(snapshot_of(hub, CONVERSION), configuration("llama")), base_model=QWEN)


# The gate.


def test_a_matched_drafter_is_used_at_once(engine_at: EngineAt, target: Path, tmp_path: Path, told: list[str]) -> None:
    drafter = dflash_at(tmp_path / "drafter", QWEN)
    assert engine_at(target, drafter=str(drafter)).drafter.name == "dflash"
    assert engine_at(target, drafter=f"suffix+{drafter}").drafter.name == "suffix+dflash"
    assert told == []


def test_a_wrong_one_is_told_with_the_way_to_measure_it_and_what_auto_takes_is_used(
    engine_at: EngineAt, target: Path, tmp_path: Path, told: list[str]
) -> None:
    drafter = dflash_at(tmp_path / "a drafter", OTHER)
    assert engine_at(target, drafter=str(drafter)).drafter.name == "suffix"
    command = NOT_MEASURED.format(f"'{drafter}'", CONVERSION)
    assert told == [
        f"going on as with drafter auto, without drafter {drafter}: it was made for {OTHER}, and {CONVERSION} is "
        f"another model; {command}"
    ]


def test_in_its_place_auto_takes_a_drafter_that_matches(
    engine_at: EngineAt, target: Path, tmp_path: Path, told: list[str]
) -> None:
    dflash_at(tmp_path / "models" / "right", QWEN, second=True)
    wrong = dflash_at(tmp_path / "wrong", OTHER)
    assert engine_at(target, drafter=str(wrong)).drafter.name == "suffix+dflash2"
    assert [line.split(":")[0] for line in told] == [
        f"going on as with drafter auto, without drafter {wrong}",
        f"drafting with suffix and drafter {tmp_path / 'models' / 'right'} (dflash, found in {tmp_path / 'models'}), "
        f"which was made for {QWEN}",
    ]


def test_a_good_verdict_on_this_very_choice_lets_it_through(
    engine_at: EngineAt, target: Path, tmp_path: Path, told: list[str]
) -> None:
    word = str(dflash_at(tmp_path / "drafter", OTHER))
    measuring = engine_at(target, drafter=word, adopt="always")
    assert (measuring.drafter.name, told) == ("dflash", [])
    GOOD.store(tmp_path, measuring.target, measuring.drafter_key)
    assert engine_at(target, drafter=word).drafter.name == "dflash"
    assert told == []
    # Another mixture, and other options, are other choices.
    assert engine_at(target, drafter=f"suffix+{word}").drafter.name == "suffix"
    assert engine_at(target, drafter=f"{word}:block=4").drafter.name == "suffix"
    assert len(told) == 2
    BAD.store(tmp_path, measuring.target, measuring.drafter_key)
    assert engine_at(target, drafter=word).drafter.name == "suffix"
    assert told[2].endswith(
        "is another model; 0.50 times the rate of plain decoding: not adopted (it takes 1.15 times, and the same "
        f"texts); to measure it again, run cidermill bench --drafter {word} --model {CONVERSION}"
    )


def test_a_drafter_beside_a_head_that_the_target_has_is_a_wrong_one(
    engine_at: EngineAt, tmp_path: Path, told: list[str]
) -> None:
    raw_model(tmp_path, "qwen3_5")
    write_model(tmp_path / "draft", "qwen3_5")
    assert engine_at(tmp_path, "qwen3_5", drafter=str(tmp_path / "draft")).drafter.name == "suffix+mtp"
    (line,) = told
    assert f": {CONVERSION} has a multi-token prediction head of its own; it was not measured here; " in line
    assert engine_at(tmp_path, "qwen3_5", drafter="mtp").drafter.name == "mtp"
    assert len(told) == 1


def test_what_does_not_fit_is_an_error_and_no_wrong_pairing(engine_at: EngineAt, target: Path, tmp_path: Path) -> None:
    word = str(dflash_at(tmp_path / "drafter", OTHER, hidden_size=128))
    for adopt in ("matched", "measured", "always"):
        with pytest.raises(ModelError, match="hidden_size is 128, but the target has 64"):
            engine_at(target, drafter=word, adopt=adopt)


def test_an_engine_that_takes_only_what_was_measured_decodes_plainly_without(
    engine_at: EngineAt, target: Path, tmp_path: Path, told: list[str]
) -> None:
    word = str(dflash_at(tmp_path / "drafter", QWEN))
    assert engine_at(target, drafter=word, adopt="measured").drafter.name == "none"
    assert told == [f"decoding plainly, without drafter {word}: {NOT_MEASURED.format(word, CONVERSION)}"]
    measuring = engine_at(target, drafter=word, adopt="always")
    GOOD.store(tmp_path, measuring.target, measuring.drafter_key)
    assert engine_at(target, drafter=word, adopt="measured").drafter.name == "dflash"
    assert len(told) == 1


# Keys.


def test_a_verdict_and_what_is_learned_end_with_the_contents_of_the_checkpoint(
    engine_at: EngineAt, target: Path, tmp_path: Path, told: list[str]
) -> None:
    directory = dflash_at(tmp_path / "drafter", OTHER)
    first = engine_at(target, drafter=str(directory), adopt="always")
    GOOD.store(tmp_path, first.target, first.drafter_key)
    os.utime(directory / "model-00001-of-00001.safetensors", (1, 1))
    second = engine_at(target, drafter=str(directory), adopt="always")
    assert Adoption.find(tmp_path, second.target, second.drafter_key) is None
    assert engine_at(target, drafter=str(directory)).drafter.name == "suffix"
    assert len(told) == 1
    for engine in (first, second):
        engine._learned.request_ended()
        engine.close()
    assert len(list((tmp_path / "drafters").iterdir())) == 2


def test_the_name_by_which_a_checkpoint_is_called_makes_no_difference(
    engine_at: EngineAt, target: Path, hub: Path
) -> None:
    snapshot = dflash_at(snapshot_of(hub, "z-lab/Drafter"), QWEN)
    by_id = engine_at(target, drafter="suffix+z-lab/Drafter")
    assert by_id.drafter.name == "suffix+dflash"
    assert engine_at(target, drafter=f"suffix+{snapshot}").drafter_key == by_id.drafter_key
    assert engine_at(target, drafter="auto").drafter_key == by_id.drafter_key
    assert engine_at(target, drafter="suffix").drafter_key == "suffix"


def test_a_changed_head_of_the_target_is_another_drafter(engine_at: EngineAt, tmp_path: Path) -> None:
    raw_model(tmp_path, "qwen3_5")
    key = engine_at(tmp_path, "qwen3_5").drafter_key
    os.utime(tmp_path / "model-00002-of-00002.safetensors", (1, 1))
    assert engine_at(tmp_path, "qwen3_5").drafter_key != key


def test_options_in_another_order_are_the_same_choice(engine_at: EngineAt, target: Path, tmp_path: Path) -> None:
    drafter = dflash_at(tmp_path / "drafter", QWEN)
    choices = [f"{drafter}:block=4,bits=8", f"{drafter}:bits=8,block=4", str(drafter)]
    one, other, without = (engine_at(target, drafter=choice).drafter_key for choice in choices)
    assert one == other != without


# What `auto` finds.


def test_auto_takes_a_checkpoint_of_the_hubs_cache_and_says_so(
    engine_at: EngineAt, target: Path, hub: Path, told: list[str]
) -> None:
    dflash_at(snapshot_of(hub, "z-lab/Qwen3.8-27B-DFlash"))
    assert engine_at(target).drafter.name == "suffix+dflash"
    assert told == [
        "drafting with suffix and drafter z-lab/Qwen3.8-27B-DFlash (dflash, found in the hub's cache), "
        "which was made for Qwen3.8-27B"
    ]


def test_auto_takes_an_assistant(engine_at: EngineAt, tmp_path: Path) -> None:
    config = write_config(tmp_path / "Qwen3.8-27B-4bit", configuration("gemma4_text"))
    assistant_at(tmp_path / "models" / "assistant", QWEN)
    assert engine_at(config, "gemma4_text").drafter.name == "suffix+gemma_assistant"


def test_a_targets_own_head_is_taken_and_nothing_else(engine_at: EngineAt, tmp_path: Path, told: list[str]) -> None:
    raw_model(tmp_path, "qwen3_5")
    write_card(tmp_path, base_model=QWEN)
    head = tmp_path / "models" / "head"
    shutil.copytree(tmp_path, head, ignore=shutil.ignore_patterns("models"))
    write_config(head, configuration("qwen3_5") | {"model_type": "qwen3_5_mtp"})
    assert engine_at(tmp_path, "qwen3_5").drafter_key.startswith("suffix + own head identity ")
    assert told == []
    # Without one of its own, the other is one that was made for it.
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    assert engine_at(tmp_path, "qwen3_5").drafter_key.startswith("suffix + mtp identity ")


def broken_files(directory: Path) -> None:
    for file in directory.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:2000])


def missing_sidecar(directory: Path) -> None:
    write_config(directory, configuration("qwen3_5") | {"mlx_lm_extra_tensors": {"mtp_file": "gone.safetensors"}})


def incomplete_head(directory: Path) -> None:
    for file in directory.glob("*.safetensors"):
        tensors = mx.load(str(file))
        assert isinstance(tensors, dict)
        mx.save_safetensors(str(file), {name: one for name, one in tensors.items() if name != "mtp.norm.weight"})


@pytest.mark.parametrize(
    ("damage", "named"),
    [(broken_files, "not a safetensors file"), (missing_sidecar, "gone.safetensors"), (incomplete_head, "norm.weight")],
)
def test_a_head_that_is_broken_does_not_keep_its_model_from_decoding(
    engine_at: EngineAt, tmp_path: Path, told: list[str], damage: Callable[[Path], None], named: str
) -> None:
    raw_model(tmp_path, "qwen3_5")
    damage(tmp_path)
    assert engine_at(tmp_path, "qwen3_5").drafter.name == "suffix"
    (line,) = told
    assert line.startswith("drafting without the model's own multi-token prediction head: ")
    assert named in line
    with pytest.raises(ModelError, match=named):
        engine_at(tmp_path, "qwen3_5", drafter="mtp")


@pytest.mark.parametrize("base", [None, OTHER])
def test_auto_takes_nothing_that_does_not_name_the_target(
    engine_at: EngineAt, target: Path, tmp_path: Path, told: list[str], base: str | None
) -> None:
    dflash_at(tmp_path / "models" / "drafter", base)
    write_model(tmp_path / "models" / "model", "llama")
    assert engine_at(target).drafter.name == "suffix"
    assert told == []


def test_a_broken_checkpoint_is_named_and_left_for_the_next_one(
    engine_at: EngineAt, target: Path, tmp_path: Path, told: list[str]
) -> None:
    models = tmp_path / "models"
    broken = dflash_at(models / "broken", QWEN, second=True)
    weights = broken / "model-00001-of-00001.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    dflash_at(models / "whole", QWEN)
    assert engine_at(target).drafter.name == "suffix+dflash"
    assert told[0].startswith(f"drafter {broken} (dflash, found in {models}) is left: {weights}: ")
    weights.unlink()
    shutil.rmtree(models / "whole")
    assert engine_at(target).drafter.name == "suffix"
    assert told[2].startswith(f"drafter {broken} (dflash, found in {models}) is left: {broken}: no tensors there")
    assert len(told) == 3


def test_one_that_memory_has_no_room_for_is_named_and_left(
    engine_at: EngineAt, target: Path, tmp_path: Path, told: list[str]
) -> None:
    dflash_at(tmp_path / "models" / "drafter", QWEN)
    weights = sum(tensor.nbytes for _, tensor in tree_flatten(tiny_model("llama").parameters()))
    engine = engine_at(target, memory_limit_gb=(weights * 1.1 + 2**28 + 1024) / 2**30)
    assert engine.drafter.name == "suffix"
    (line,) = told
    assert f"is left: model {CONVERSION} with drafter {tmp_path / 'models' / 'drafter'} needs about" in line


def test_of_what_was_not_measured_auto_says_how_to_and_takes_what_was(
    engine_at: EngineAt, target: Path, hub: Path, tmp_path: Path, told: list[str]
) -> None:
    dflash_at(snapshot_of(hub, "z-lab/Drafter"), QWEN)
    measure = NOT_MEASURED.format("auto", CONVERSION)
    assert engine_at(target, adopt="measured").drafter.name == "none"
    assert told == [f"decoding plainly, without drafter suffix+z-lab/Drafter: {measure}"]
    suffix = engine_at(target, drafter="suffix", adopt="always")
    GOOD.store(tmp_path, suffix.target, suffix.drafter_key)
    assert engine_at(target, adopt="measured").drafter.name == "suffix"
    assert told[1:] == [f"drafting with suffix, without drafter suffix+z-lab/Drafter: {measure}"]
    measured = engine_at(target, adopt="always")
    GOOD.store(tmp_path, measured.target, measured.drafter_key)
    assert engine_at(target, adopt="measured").drafter.name == "suffix+dflash"


def test_an_engine_that_drafts_nothing_looks_for_nothing(
    engine_at: EngineAt, target: Path, tmp_path: Path, told: list[str]
) -> None:
    dflash_at(tmp_path / "models" / "drafter", QWEN)
    assert engine_at(target, max_tree_nodes=1, fixed_nodes=None).drafter.name == "none"
    assert engine_at(target, drafter="none").drafter.name == "none"
    assert told == []
