"""A model that does not fit is refused before its weights are read; sizes are checked against the files' own bytes."""

import json
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from api.errors import ExitCode, ModelError
from worker.engine import loading
from worker.engine.loading import load_target
from worker.engine.memory import (
    GIGABYTE,
    DoesNotFitError,
    MemoryLimit,
    ModelMemory,
    needed_bytes,
    prefix_cache_bytes,
    read_weights,
    weight_bytes,
)
from worker.engine.models import ModelSpec, demo_gguf

WIDTHS = {"F32": 4, "BF16": 2, "F16": 2, "U32": 4}
MEGABYTE = 2**20


def tensors(directory: Path) -> dict[str, tuple[str, int]]:
    """Type and number of elements of each tensor, from the header of the safetensors file, parsed by hand."""
    with (directory / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    sizes = {}
    for name, tensor in header.items():
        elements = 1
        for size in tensor["shape"]:
            elements *= size
        sizes[name] = (tensor["dtype"], elements)
    return sizes


def stored_bytes(directory: Path) -> int:
    return sum(WIDTHS[kind] * elements for kind, elements in tensors(directory).values())


def dense_parameters(directory: Path) -> int:
    """Parameters of the dense model: a 32-bit word of a 4-bit tensor is eight of them; scales and biases are gone."""
    groups = {name.removesuffix(".scales") for name in tensors(directory) if name.endswith(".scales")}
    count = 0
    for name, (kind, elements) in tensors(directory).items():
        module, _, part = name.rpartition(".")
        if module not in groups:
            count += elements
        elif part == "weight":
            assert kind == "U32"
            bits = packed_bits(directory, module)
            count += elements * 32 // bits
    return count


def packed_bits(directory: Path, module: str) -> int:
    quantization = json.loads((directory / "config.json").read_text("utf-8"))["quantization"]
    return int(quantization.get(module, quantization)["bits"])


def refusal(spec: ModelSpec, models_dir: Path, limit_gb: float | None) -> str:
    with pytest.raises(ModelError) as caught:
        load_target(spec, models_dir, memory=ModelMemory(MemoryLimit.of(limit_gb)))
    assert caught.value.exit_code == ExitCode.MODEL_UNUSABLE
    return str(caught.value)


def test_the_room_beside_the_weights_is_a_tenth_and_a_quarter_gigabyte() -> None:
    assert needed_bytes(0) == 256 * MEGABYTE
    assert needed_bytes(10 * GIGABYTE) == 11 * GIGABYTE + 256 * MEGABYTE


def test_a_model_that_just_fits_passes_and_a_byte_more_does_not() -> None:
    memory = ModelMemory(MemoryLimit(needed_bytes(1000), "the test gives it"))
    memory.check("m", 1000)
    with pytest.raises(ModelError):
        memory.check("m", 1020)


def test_the_sentence_has_the_need_the_limit_and_the_way_out() -> None:
    with pytest.raises(ModelError) as caught:
        ModelMemory(MemoryLimit(8 * GIGABYTE, "this device gives it")).check("org/model", 10 * GIGABYTE)
    assert str(caught.value) == (
        "model org/model needs about 11.25 GB of memory (10.00 GB of weights, the rest for caches and activations), "
        "and this device gives it 8.00 GB; take a smaller quantization or a larger machine, or set memory_limit_gb if "
        "there is more memory than that"
    )


def model_of(size: int) -> nn.Module:
    """Of `size` bytes, which do not exist before they are read."""
    model = nn.Module()
    model.weight = mx.zeros((size // 4,)) + 1
    return model


def test_a_drafter_is_counted_beside_the_target() -> None:
    memory = ModelMemory(MemoryLimit(needed_bytes(12 * MEGABYTE), "this device gives it"))
    memory.reader("org/model")(model_of(8 * MEGABYTE))
    memory.reader("org/small")(model_of(4 * MEGABYTE))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    with pytest.raises(DoesNotFitError) as caught:
        memory.reader("org/head")(model_of(4 * MEGABYTE))
    assert mx.get_peak_memory() - before < MEGABYTE
    assert str(caught.value) == (
        "model org/model with drafter org/small and drafter org/head needs about 0.27 GB of memory (0.02 GB of "
        "weights, the rest for caches and activations), and this device gives it 0.26 GB; take a smaller drafter or "
        "none, a smaller quantization or a larger machine, or set memory_limit_gb if there is more memory than that"
    )


def test_what_was_refused_is_not_counted() -> None:
    memory = ModelMemory(MemoryLimit(needed_bytes(12 * MEGABYTE), "this device gives it"))
    memory.count("org/model", model_of(8 * MEGABYTE))
    with pytest.raises(DoesNotFitError):
        memory.count("org/large", model_of(8 * MEGABYTE))
    memory.count("org/small", model_of(4 * MEGABYTE))


def test_weights_are_read_one_after_the_other() -> None:
    """Converted ones, as here, stand beside one of the stored ones at most."""
    model = nn.Module()
    stored = [mx.full((MEGABYTE,), float(number)) for number in range(8)]
    model.parts = [part.astype(mx.float16) for part in stored]
    stored.clear()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    read_weights(model)
    # Eight of two megabytes, and one of four.
    assert mx.get_peak_memory() - before < 21 * MEGABYTE
    assert mx.get_active_memory() - before == pytest.approx(16 * MEGABYTE, abs=MEGABYTE // 8)


def test_the_setting_takes_the_place_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.engine.memory.memory_bytes", lambda: 5 * GIGABYTE)
    assert MemoryLimit.of(None) == MemoryLimit(5 * GIGABYTE, "this device gives it")
    assert MemoryLimit.of(1.5) == MemoryLimit(3 * 2**29, "memory_limit_gb allows it")


@pytest.mark.model
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float32"])
def test_the_weights_of_a_packed_model_are_counted_as_they_will_be(smollm2_directory: Path, dtype: Any) -> None:
    """As stored, or converted: 134.5 million parameters of two or four bytes."""
    expected = stored_bytes(smollm2_directory)
    if dtype:
        assert dense_parameters(smollm2_directory) == 134_515_008
        expected = 134_515_008 * {"bfloat16": 2, "float32": 4}[dtype]
    spec = ModelSpec(str(smollm2_directory), dtype)
    needed = expected * 1.1 + 256 * MEGABYTE
    message = refusal(spec, smollm2_directory.parent, (needed - MEGABYTE) / GIGABYTE)
    assert f"model {spec} needs about {needed / GIGABYTE:.2f} GB" in message
    assert f"({expected / GIGABYTE:.2f} GB of weights" in message
    memory = ModelMemory(MemoryLimit.of((needed + MEGABYTE) / GIGABYTE))
    target = load_target(spec, smollm2_directory.parent, memory=memory)
    assert weight_bytes(target.model) == expected
    assert expected <= (smollm2_directory / "model.safetensors").stat().st_size or dtype


@pytest.mark.model
def test_a_refused_model_is_never_in_memory(smollm2_float32_directory: Path) -> None:
    assert stored_bytes(smollm2_float32_directory) == 4 * 134_515_008
    spec = ModelSpec(str(smollm2_float32_directory))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    refusal(spec, smollm2_float32_directory.parent, 0.5)
    assert mx.get_peak_memory() - before < MEGABYTE


@pytest.mark.model
def test_a_conversion_never_holds_all_stored_weights_beside_the_converted_ones(smollm2_directory: Path) -> None:
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    target = load_target(ModelSpec(str(smollm2_directory), "bfloat16"), smollm2_directory.parent)
    held = mx.get_active_memory() - before
    assert held == pytest.approx(weight_bytes(target.model), abs=MEGABYTE)
    assert mx.get_peak_memory() - before - held < stored_bytes(smollm2_directory)


@pytest.mark.model
def test_a_gguf_too_large_to_convert_is_refused_before_the_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "convert", lambda *_: pytest.fail("it was converted"))
    size = demo_gguf().stat().st_size
    message = refusal(ModelSpec("smollm2"), tmp_path, 0.3)
    assert f"model smollm2 needs about {(size * 1.1 + 256 * MEGABYTE) / GIGABYTE:.2f} GB" in message
    assert not list(tmp_path.iterdir())


def test_snapshots_of_prompts_may_take_a_quarter_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.engine.memory.memory_bytes", lambda: 9 * GIGABYTE)
    monkeypatch.setattr("worker.engine.memory.mx.get_active_memory", lambda: 5 * GIGABYTE)
    assert prefix_cache_bytes(None) == GIGABYTE
    assert prefix_cache_bytes(7.0) == GIGABYTE // 2
    assert prefix_cache_bytes(4.0) == 0
