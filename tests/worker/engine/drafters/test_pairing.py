"""Pairing: what does not fit is refused by name, and what should not be paired is objected to, with the reason."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_maker import EngineFor
from mtp_checkpoints import raw_model, stand_alone
from mtp_checkpoints import target as mtp_target
from paired_checkpoints import LAYERS, assistant_at, dflash_at, snapshot_of, write_card, write_config

from api.errors import ModelError
from bench.families import configuration, tiny_model
from worker.engine.drafters.choice import DrafterLoader
from worker.engine.drafters.origin import MadeFor, Origin
from worker.engine.drafters.pairing import Pairing, TargetFacts, check_fit, match_of, pairing_of
from worker.engine.models import ModelSpec

QWEN = "Qwen/Qwen3.8-27B"
CONVERSION = "mlx-community/Qwen3.8-27B-4bit"


def facts(family: str, name: str = "tiny", has_head: bool = False, **changes: Any) -> TargetFacts:
    return TargetFacts(name, Origin(name), configuration(family, **changes), has_head)


# Fitting.


def test_a_block_drafter_fits_by_the_sizes_in_both_configs(tmp_path: Path) -> None:
    check_fit("dflash", dflash_at(tmp_path), facts("llama"))
    check_fit("dflash", tmp_path, replace(facts("llama"), config={}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": 128}, "hidden_size is 128, but the target has 64: it is made for another target"),
        ({"vocab_size": 100}, "vocab_size is 100, but the target has 97: it is made for another target"),
        (
            {"num_target_layers": 36},
            f"num_target_layers is 36, but the target has {LAYERS}: it is made for another target",
        ),
        (
            {"dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, LAYERS]}},
            f"target_layer_ids is [0, {LAYERS}]; the target has {LAYERS} blocks",
        ),
        (
            {"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0]}},
            "mask_token_id is 97; the target has 97 embeddings",
        ),
        ({"block_size": None}, "block_size is missing; expected a whole number of at least 2"),
    ],
)
def test_a_block_drafter_that_does_not_fit_names_the_field(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    dflash_at(tmp_path / "fitting")
    config = json.loads((tmp_path / "fitting" / "config.json").read_text()) | changes
    write_config(tmp_path, {name: value for name, value in config.items() if value is not None})
    with pytest.raises(ModelError) as caught:
        check_fit("dflash", tmp_path, facts("llama"))
    assert str(caught.value) == f"{tmp_path / 'config.json'}: {says}"


def test_an_assistant_fits_by_the_targets_hidden_size(tmp_path: Path) -> None:
    assistant_at(tmp_path / "a", "google/gemma-4-31B-it")
    check_fit("gemma_assistant", tmp_path / "a", facts("gemma4_text"))
    assistant_at(tmp_path / "b", "google/gemma-4-31B-it", backbone_hidden_size=96)
    with pytest.raises(ModelError, match="backbone_hidden_size is 96, but the target has 64"):
        check_fit("gemma_assistant", tmp_path / "b", facts("gemma4_text"))


def test_a_stand_alone_head_fits_by_what_its_config_repeats_of_the_target(tmp_path: Path) -> None:
    stand_alone(tmp_path, "qwen3_5")
    check_fit("mtp", tmp_path, facts("qwen3_5"))
    with pytest.raises(ModelError, match="hidden_size is 64, but the target has 128"):
        check_fit("mtp", tmp_path, facts("qwen3_5", hidden_size=128))
    write_config(tmp_path, {"model_type": "qwen3_5_mtp"})
    check_fit("mtp", tmp_path, facts("qwen3_5", hidden_size=128))


# Matching.


@pytest.mark.parametrize(
    ("drafts_for", "target", "match"),
    [
        (MadeFor((QWEN,), True), Origin(QWEN, True), "this"),
        (MadeFor((QWEN,), True), Origin(CONVERSION, True), "this"),
        (MadeFor((QWEN,), True), Origin("mlx_model", False, (QWEN,)), "this"),
        (MadeFor((QWEN,), True), Origin("Qwen3.8-27B-4bit"), "this"),
        (MadeFor((CONVERSION,), True), Origin(QWEN, True), "this"),
        (MadeFor(("Qwen/Qwen3.6-27B", QWEN), True), Origin(QWEN, True), "this"),
        (MadeFor(("Qwen3.8-27B",)), Origin(CONVERSION, True), "this"),
        (MadeFor((QWEN,), True), Origin("a/Qwen3.8-27B-abliterated", True, (QWEN,), "finetune"), "its base"),
        (MadeFor((QWEN,), True), Origin("a/Qwen3.8-27B-abliterated", True, (QWEN,)), "its base"),
        (MadeFor(("Qwen3.8-27B",)), Origin("a/Qwen3.8-27B-abliterated", True, (QWEN,)), "its base"),
        (MadeFor((QWEN,), True), Origin("model", False, (QWEN,), "finetune"), "its base"),
        (MadeFor(("a/Qwen3.8-27B-abliterated",), True), Origin("a/Qwen3.8-27B-abliterated", True, (QWEN,)), "this"),
        (MadeFor((QWEN,), True), Origin("Qwen/Qwen3.6-27B", True), "another"),
        (MadeFor((QWEN,), True), Origin("a/abliterated-4bit", True, ("a/Qwen3.8-27B-abliterated",)), "another"),
        (MadeFor((QWEN,), True), Origin("model", False, ("Qwen/Qwen3.6-27B",)), "another"),
        (MadeFor((QWEN,), True), Origin("model"), "unknown"),
        # A name can be short for another: Qwen3-Coder-30B-A3B-DFlash is for Qwen3-Coder-30B-A3B-Instruct.
        (MadeFor(("Qwen3-Coder-30B-A3B",)), Origin("Qwen/Qwen3-Coder-30B-A3B-Instruct", True), "unknown"),
        (MadeFor(), Origin(QWEN, True), "unknown"),
    ],
)
def test_a_match_is_told_from_a_derivative_another_model_and_silence(
    drafts_for: MadeFor, target: Origin, match: str
) -> None:
    assert match_of(drafts_for, target) == match


# Objections.


@pytest.fixture
def objections(engine_for: EngineFor, tmp_path: Path) -> Any:
    """objections(word, target directory, family): those to a choice for a target whose files are there."""

    def of(word: str, directory: Path, family: str = "llama") -> tuple[str, ...]:
        return pairing(word, directory, family).objections

    def pairing(word: str, directory: Path, family: str) -> Pairing:
        model = mtp_target(family) if family.startswith("qwen3_5") else tiny_model(family)
        target = replace(engine_for(model).target, directory=directory, spec=ModelSpec("the/target"))
        loader = DrafterLoader(target, tmp_path)
        return pairing_of(word, loader.parts(word), TargetFacts.of(loader))

    return of


def llama_at(directory: Path, **card: Any) -> Path:
    write_config(directory, configuration("llama"))
    return write_card(directory, **card) if card else directory


def test_a_drafter_for_this_target_meets_no_objection(objections: Any, tmp_path: Path) -> None:
    drafter = dflash_at(tmp_path / "drafter", QWEN)
    quantized = llama_at(tmp_path / "mlx_model", base_model=QWEN, base_model_relation="quantized")
    assert objections(str(drafter), quantized) == ()
    assert objections(f"suffix+{drafter}", llama_at(snapshot_of(tmp_path / "hub", CONVERSION))) == ()


def test_a_drafter_for_another_model_is_objected_to(objections: Any, tmp_path: Path) -> None:
    drafter = dflash_at(tmp_path / "drafter", "Qwen/Qwen3.6-27B")
    target = llama_at(snapshot_of(tmp_path / "hub", CONVERSION))
    assert objections(f"suffix+{drafter}", target) == (
        "it was made for Qwen/Qwen3.6-27B, and the/target is another model",
    )
    told = llama_at(tmp_path / "mlx_model", base_model=QWEN)
    assert objections(str(drafter), told) == (
        f"it was made for Qwen/Qwen3.6-27B, and the/target ({QWEN}) is another model",
    )


def test_a_derivative_of_the_drafters_target_is_objected_to(objections: Any, tmp_path: Path) -> None:
    drafter = dflash_at(tmp_path / "drafter", QWEN)
    target = llama_at(tmp_path / "model", base_model=QWEN, base_model_relation="finetune")
    assert objections(str(drafter), target) == (
        f"it was made for {QWEN}, and the/target is derived from that (finetune)",
    )
    abliterated = llama_at(snapshot_of(tmp_path / "hub", "a/Qwen3.8-27B-abliterated"), base_model=QWEN)
    assert objections(str(drafter), abliterated) == (f"it was made for {QWEN}, and the/target is derived from that",)


def test_a_target_with_a_head_of_its_own_objects_to_every_other_drafter(objections: Any, tmp_path: Path) -> None:
    raw_model(tmp_path, "qwen3_5")
    stand_alone(tmp_path / "head", "qwen3_5")
    write_config(tmp_path / "draft", configuration("qwen3_5"))
    own = ("the/target has a multi-token prediction head of its own",)
    for word in (str(tmp_path / "head"), f"suffix+{tmp_path / 'draft'}", f"mtp+{tmp_path / 'head'}"):
        assert objections(word, tmp_path, "qwen3_5") == own
    assert objections("suffix+mtp", tmp_path, "qwen3_5") == ()


def test_objections_add_up_and_name_the_drafter_they_are_to(objections: Any, tmp_path: Path) -> None:
    raw_model(tmp_path, "qwen3_5")
    write_card(tmp_path, base_model=QWEN)
    for name, base in (("one", QWEN), ("two", "Qwen/Qwen3.6-27B")):
        stand_alone(tmp_path / name, "qwen3_5")
        write_card(tmp_path / name, base_model=base)
    assert objections(f"{tmp_path / 'one'}+{tmp_path / 'two'}", tmp_path, "qwen3_5") == (
        f"{tmp_path / 'two'} was made for Qwen/Qwen3.6-27B, and the/target ({QWEN}) is another model",
        "the/target has a multi-token prediction head of its own",
    )


@pytest.mark.parametrize("base", [None, QWEN])
def test_silence_is_no_objection(objections: Any, tmp_path: Path, base: str | None) -> None:
    drafter = dflash_at(tmp_path / "drafter", base)
    assert objections(str(drafter), llama_at(tmp_path / "model")) == ()
    assert objections(str(drafter), tmp_path / "nowhere") == ()


def test_a_draft_models_base_is_not_what_it_is_for(objections: Any, tmp_path: Path) -> None:
    draft = write_card(write_config(tmp_path / "draft", configuration("llama")), base_model="Qwen/Qwen3.8-0.8B-Base")
    assert objections(str(draft), llama_at(snapshot_of(tmp_path / "hub", CONVERSION))) == ()


def test_the_suffix_drafter_meets_none(objections: Any, tmp_path: Path) -> None:
    raw_model(tmp_path, "qwen3_5")
    assert objections("suffix", tmp_path, "qwen3_5") == ()


def test_a_head_that_cannot_be_read_is_none(objections: Any, tmp_path: Path) -> None:
    directory = llama_at(tmp_path / "model")
    (directory / "mtp.safetensors").write_text("no tensors")
    assert objections(str(dflash_at(tmp_path / "drafter")), directory) == ()
