"""A drafter's weights count beside the target's, in the type they will have, before any of them is read."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gemma_assistant_checkpoints as gemma
import mlx.core as mx
import pytest
from dflash_checkpoints import FULL, random_tensors, second_config
from dflash_checkpoints import write as write_dflash
from engine_maker import EngineFor
from mlx.utils import tree_flatten
from mtp_checkpoints import converted, packed, raw_model, raw_tensors, stand_alone
from mtp_checkpoints import target as mtp_target

from api.errors import ModelError
from bench.families import tiny_model, vocabulary
from worker.engine.drafters.choice import DrafterLoader
from worker.engine.drafters.dflash import DFlashSettings, load_dflash
from worker.engine.loading import Target
from worker.engine.memory import DoesNotFitError, MemoryLimit, ModelMemory
from worker.engine.selection import Selection

ROOM = 256 * 2**20
GEMMA = "gemma4_text"


def size_of(tensors: Mapping[str, Any]) -> int:
    return sum(int(tensor.nbytes) for tensor in tensors.values())


def dflash(directory: Path) -> tuple[Any, int]:
    target = tiny_model("llama")
    config = second_config([FULL, FULL], len(target.layers))
    tensors = random_tensors(config)
    write_dflash(directory, config, tensors)
    return target, size_of(tensors)


def assistant(directory: Path) -> tuple[Any, int]:
    config = gemma.config_of(vocabulary(GEMMA))
    tensors = gemma.tensors_of(config)
    gemma.write(directory, config, tensors)
    return tiny_model(GEMMA), size_of(tensors)


def head(directory: Path) -> tuple[Any, int]:
    stand_alone(directory, "qwen3_5")
    return mtp_target("qwen3_5"), size_of(packed(converted(raw_tensors("qwen3_5"))))


def limit_gb(target: Any, drafter: int) -> float:
    """What the target and a drafter of so many bytes need, a few bytes on the safe side of rounding."""
    weights = sum(array.nbytes for _, array in tree_flatten(target.parameters())) + drafter
    return (weights * 1.1 + ROOM + 8) / 2**30


@pytest.fixture
def engine_target(engine_for: EngineFor) -> Callable[[Any], Target]:
    return lambda model: engine_for(model).target


@pytest.mark.parametrize("kind", [dflash, assistant, head])
def test_a_checkpoint_is_refused_before_it_is_read_and_loads_where_both_fit(
    engine_target: Callable[[Any], Target], tmp_path: Path, kind: Callable[[Path], tuple[Any, int]]
) -> None:
    directory = tmp_path / "drafter"
    model, size = kind(directory)
    target = engine_target(model)
    loader = DrafterLoader(target, tmp_path, limit_gb(model, size - 32))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    with pytest.raises(DoesNotFitError) as caught:
        loader.load(f"suffix+{directory}")
    assert mx.get_peak_memory() - before < size / 2
    assert str(caught.value).startswith(f"model {target.spec} with drafter {directory} needs about 0.25 GB of memory")
    DrafterLoader(target, tmp_path, limit_gb(model, size)).load(f"suffix+{directory}")


def test_parts_of_a_mixture_are_counted_together(engine_target: Callable[[Any], Target], tmp_path: Path) -> None:
    model, size = dflash(tmp_path / "one")
    dflash(tmp_path / "two")
    both = f"{tmp_path / 'one'}+{tmp_path / 'two'}"
    target = engine_target(model)
    with pytest.raises(ModelError, match=r"one and drafter .*two needs about"):
        DrafterLoader(target, tmp_path, limit_gb(model, 2 * size - 32)).load(both)
    DrafterLoader(target, tmp_path, limit_gb(model, 2 * size)).load(both)


def test_the_memory_that_a_drafter_keeps_is_told(engine_target: Callable[[Any], Target], tmp_path: Path) -> None:
    directory = tmp_path / "drafter"
    model, size = dflash(directory)
    selection = Selection(DrafterLoader(engine_target(model), tmp_path), "always")
    assert size <= selection.select(f"suffix+{directory}").weight_bytes < 1.2 * size
    assert selection.select("suffix").weight_bytes == selection.select("none").weight_bytes == 0


def test_auto_leaves_out_a_head_that_does_not_fit_and_says_so(
    engine_target: Callable[[Any], Target], tmp_path: Path
) -> None:
    raw_model(tmp_path, "qwen3_5")
    model, size = mtp_target("qwen3_5"), size_of(raw_tensors("qwen3_5"))
    target = replace(engine_target(model), directory=tmp_path)
    told: list[str] = []

    def auto(gigabytes: float) -> str:
        loader = DrafterLoader(target, tmp_path, gigabytes, told.append)
        return Selection(loader, "matched", told.append).select("auto").drafter.name

    assert auto(limit_gb(model, size - 32)) == "suffix"
    (line,) = told
    assert line.startswith(f"drafting without the model's own multi-token prediction head: model {target.spec} with ")
    assert auto(limit_gb(model, size)) == "suffix+mtp"
    with pytest.raises(DoesNotFitError, match="with drafter mtp needs"):
        DrafterLoader(target, tmp_path, limit_gb(model, size - 32)).load("mtp")


def test_what_will_be_quantised_counts_as_such_and_a_draft_vocabulary_counts(tmp_path: Path) -> None:
    model, size = dflash(tmp_path)
    # 8 bit, groups of 64 inputs: a byte a weight, and per group a scale and a bias of four bytes each.
    config = second_config([FULL, FULL], len(model.layers))
    dense = {
        name: tensor
        for name, tensor in random_tensors(config).items()
        if (name.endswith("_proj.weight") and "down_proj" not in name) or name == "fc.weight"
    }
    quantised = size - size_of(dense) + sum(tensor.size + tensor.size // 64 * 8 for tensor in dense.values())
    # 40 rows of the head, padded to 64, of 64 float32 inputs.
    rows = 64 * 64 * 4
    settings = DFlashSettings(bits=8, vocabulary=range(40))

    def load(drafter: int) -> None:
        memory = ModelMemory(MemoryLimit(int(limit_gb(model, drafter) * 2**30), "the test gives it"))
        memory.count("m", model)
        load_dflash(tmp_path, model, settings, memory.reader("d"))

    load(quantised + rows)
    with pytest.raises(DoesNotFitError):
        load(quantised + rows - 32)


def test_quantising_never_holds_all_stored_weights_beside_the_quantised_ones(tmp_path: Path) -> None:
    model = tiny_model("llama")
    config = second_config([FULL] * 3, len(model.layers), intermediate_size=8192)
    tensors = random_tensors(config)
    write_dflash(tmp_path, config, tensors)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    drafter = load_dflash(tmp_path, model, DFlashSettings(bits=4))
    held = mx.get_active_memory() - before
    # Nine matrices of two megabytes; one of them at a time is there as it is stored.
    assert size_of(tensors) > 18 * 2**20
    assert held < 10 * 2**20
    assert mx.get_peak_memory() - before - held < 4 * 2**20
    assert drafter.name == "dflash2"
