"""Which model a checkpoint is, and which one a drafter is for, by what their cards, configs and ids say."""

from pathlib import Path
from typing import Any

import pytest
from paired_checkpoints import snapshot_of, write_card

from worker.engine.drafters.origin import Origin, made_for, origin_of, same_model

QWEN = "Qwen/Qwen3.8-27B"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (QWEN, QWEN),
        (QWEN, "mlx-community/Qwen3.8-27B-4bit"),
        (QWEN, "lmstudio-community/Qwen3.8-27B-MLX-8bit"),
        (QWEN, "Qwen/Qwen3.8-27B-FP8"),
        (QWEN, "someone/qwen3.8-27b-4-bit-DWQ"),
        (QWEN, "someone/Qwen3.8-27B-Q4_K_M-GGUF"),
        (QWEN, "z-lab/Qwen3.8-27B-DFlash2"),
        ("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16"),
        ("google/gemma-4-31B-it", "google/gemma-4-31b-it-assistant"),
        ("openai/gpt-oss-20b", "someone/gpt-oss-20b-MXFP4-Q8"),
        ("meta-llama/Llama-3.3-70B-Instruct", "mlx-community/Llama-3.3-70B-Instruct-bf16"),
        (QWEN, "Qwen3.8-27B-4bit"),
    ],
)
def test_packing_and_publisher_make_no_other_model(one: str, other: str) -> None:
    assert same_model(one, other)
    assert same_model(other, one)


@pytest.mark.parametrize(
    "other",
    [
        "Qwen/Qwen3.6-27B",
        "Qwen/Qwen3.8-27B-Base",
        "Qwen/Qwen3.8-35B-A3B",
        "huihui-ai/Huihui-Qwen3.8-27B-abliterated",
        "someone/27B-4bit",
        "someone/4bit",
        "",
    ],
)
def test_other_words_do(other: str) -> None:
    assert not same_model(QWEN, other)


def test_nothing_but_packing_is_no_name() -> None:
    assert not same_model("someone/4bit", "other/mlx-8bit")


# What a target is.


def published(name: str, *bases: str, relation: str | None = None) -> Origin:
    return Origin(name, True, bases, relation)


@pytest.mark.parametrize(
    ("origin", "is_conversion"),
    [
        (published("mlx-community/Qwen3.8-27B-4bit", QWEN, relation="quantized"), True),
        (published("mlx-community/Qwen3.8-27B-4bit", QWEN), True),
        (published("acme/q38", QWEN, relation="quantized"), True),
        # A conversion tool copies the card of its source, with the relation of the source to its own base.
        (published("mlx-community/Qwen3.8-27B-4bit", QWEN, relation="finetune"), True),
        (published("someone/Qwen3.8-27B", QWEN, relation="finetune"), False),
        (published("huihui-ai/Huihui-Qwen3.8-27B-abliterated", QWEN), False),
        (published("mlx-community/Huihui-Qwen3.8-27B-abliterated-4bit", QWEN, relation="finetune"), False),
        (published("numind/NuExtract3", "Qwen/Qwen3.5-4B"), False),
        (published("a/merge", QWEN, "Qwen/Qwen3.6-27B", relation="merge"), False),
        (Origin("mlx_model", False, (QWEN,)), True),
        (Origin("mlx_model", False, (QWEN,), "finetune"), False),
        (Origin("Qwen3.8-27B-abliterated-4bit", False, (QWEN,)), False),
        (Origin("qwen3.8-27b-8bit", False, (QWEN,)), True),
    ],
)
def test_a_conversion_is_told_from_a_derivative(origin: Origin, is_conversion: bool) -> None:
    assert origin.is_conversion is is_conversion
    assert origin.names == ((origin.name, *origin.bases) if is_conversion else (origin.name,))


def test_an_origin_is_read_from_directory_and_card(tmp_path: Path) -> None:
    directory = snapshot_of(tmp_path / "hub", "mlx-community/Qwen3.8-27B-4bit")
    assert origin_of(directory) == Origin("mlx-community/Qwen3.8-27B-4bit", True)
    write_card(directory, base_model=QWEN, base_model_relation="Quantized")
    assert origin_of(directory) == Origin("mlx-community/Qwen3.8-27B-4bit", True, (QWEN,), "quantized")
    write_card(tmp_path / "mine", base_model=[QWEN, "/models/base", "./base", "base"])
    assert origin_of(tmp_path / "mine") == Origin("mine", False, (QWEN,))


def test_a_card_that_cannot_be_read_says_nothing_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nbase_model: [\n---\n")
    told: list[str] = []
    assert origin_of(tmp_path, told.append).bases == ()
    assert [str(tmp_path / "README.md") in line for line in told] == [True]


# What a drafter is for.


@pytest.mark.parametrize(
    ("origin", "config", "names", "is_stated"),
    [
        (Origin("drafter", False, (QWEN,)), {}, (QWEN,), True),
        (Origin("drafter", False, (QWEN,), "finetune"), {}, (QWEN,), True),
        (Origin("drafter"), {"target_model_name_or_path": QWEN}, (QWEN,), True),
        (Origin("drafter"), {"speculators_config": {"verifier": {"name_or_path": QWEN}}}, (QWEN,), True),
        (Origin("drafter"), {"target_model_name_or_path": "/root/models/qwen"}, (), False),
        (Origin("drafter"), {"speculators_config": {"verifier": None}}, (), False),
        # Its id, after which it is named.
        (published("z-lab/Qwen3.8-27B-DFlash2"), {}, ("Qwen3.8-27B",), False),
        (published("google/gemma-4-E4B-it-assistant"), {}, ("gemma-4-E4B-it",), False),
        (published("someone/helper"), {}, (), False),
        (Origin("Qwen3.8-27B-DFlash2"), {}, (), False),
        # A conversion of a drafter, which names the drafter.
        (published("a/Qwen3.8-27B-DFlash2-4bit", "z-lab/Qwen3.8-27B-DFlash2"), {}, ("Qwen3.8-27B",), False),
        (Origin("mlx_model", False, ("z-lab/Qwen3.8-27B-DFlash2",)), {}, ("Qwen3.8-27B",), False),
        # One that was trained on from another drafter, for another target than that.
        (
            published("a/Qwen3.5-9B-abliterated-DFlash", "z-lab/Qwen3.5-9B-DFlash", relation="finetune"),
            {},
            ("Qwen3.5-9B-abliterated",),
            False,
        ),
        (Origin("mine", False, ("z-lab/Qwen3.5-9B-DFlash",), "finetune"), {}, (), False),
    ],
)
def test_a_drafter_says_what_it_is_for(
    origin: Origin, config: dict[str, Any], names: tuple[str, ...], is_stated: bool
) -> None:
    found = made_for(origin, config)
    assert (found.names, found.is_stated) == (names, is_stated)
    assert bool(found) is bool(names)
