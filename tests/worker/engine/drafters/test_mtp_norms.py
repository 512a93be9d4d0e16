"""Whether an MTP head's norms are stored as w or as w - 1 is decided from those that tell, and from nothing else."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mtp_checkpoints import NORM_MEANS, converted, raw_tensors, target, write

from api.errors import ModelError
from worker.engine.drafters.mtp import find_mtp, load_mtp
from worker.engine.drafters.mtp.norms import times_added, with_multiplier_norms

# Zero-centred means of published heads (2026), and of one that was never trained.
PUBLISHED = {
    "27B": {"input_layernorm": 0.04, "self_attn.q_norm": 0.79},
    "others, from": {"input_layernorm": 0.30, "self_attn.q_norm": 0.73},
    "others, to": {"input_layernorm": 0.39, "self_attn.q_norm": 0.75},
    "untrained": {"input_layernorm": 0.0, "self_attn.q_norm": 0.0},
}


def norms(means: dict[str, float], added: float) -> dict[str, mx.array]:
    return {f"layers.0.{name}.weight": mx.full((8,), mean + added) for name, mean in means.items()}


@pytest.mark.parametrize("added", [0, 1, 2])
@pytest.mark.parametrize("head", PUBLISHED)
def test_how_often_one_was_added_shows_in_the_layers_norms(head: str, added: int) -> None:
    assert times_added(norms(PUBLISHED[head], added)) == added


@pytest.mark.parametrize("stored", ["raw", "converted"])
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_every_norm_is_shifted_once_and_nothing_else(stored: str, family: str) -> None:
    raw = raw_tensors(family)
    tensors = with_multiplier_norms(raw if stored == "raw" else converted(raw), None, Path())
    for name in NORM_MEANS:
        np.testing.assert_allclose(np.array(tensors[f"{name}.weight"]), np.array(raw[f"{name}.weight"]) + 1, atol=1e-6)
    assert mx.array_equal(tensors["fc.weight"], raw["fc.weight"])
    if family == "qwen3_5_moe":
        gate = "layers.0.mlp.shared_expert_gate.weight"
        assert mx.array_equal(tensors[gate], raw[gate])


def test_a_doubly_shifted_head_is_refused(tmp_path: Path) -> None:
    doubly = converted(converted(raw_tensors("qwen3_5")))
    write(tmp_path, "mtp.safetensors", doubly, "mtp.")
    source = find_mtp(tmp_path)
    assert source is not None
    with pytest.raises(ModelError, match="as if 1 had been added to them 2 times"):
        load_mtp(source, target("qwen3_5"))


def test_norms_below_every_convention_are_refused() -> None:
    with pytest.raises(ModelError, match="added to them -1 times"):
        with_multiplier_norms(norms(PUBLISHED["untrained"], -0.9), None, Path())


@pytest.mark.parametrize(
    ("stated", "stored", "accepted"),
    [
        ("raw_hf_delta", "raw", True),
        ("mlx_multiplier", "converted", True),
        ("raw_hf_delta", "converted", False),
        ("mlx_multiplier", "raw", False),
        ("of_tomorrow", "raw", True),
    ],
)
def test_a_manifest_must_agree_with_the_norms(tmp_path: Path, stated: str, stored: str, accepted: bool) -> None:
    raw = raw_tensors("qwen3_5")
    write(tmp_path, "mtp.safetensors", raw if stored == "raw" else converted(raw), "mtp.")
    (tmp_path / "mtplx_runtime.json").write_text(json.dumps({"mtp_norm_layout": stated}))
    source = find_mtp(tmp_path)
    assert source is not None
    if accepted:
        head = load_mtp(source, target("qwen3_5"))
        np.testing.assert_allclose(np.array(head.norm.weight), np.array(raw["norm.weight"]) + 1, atol=1e-6)
    else:
        with pytest.raises(ModelError, match=rf"mtplx_runtime\.json: mtp_norm_layout is {stated}, and .* look like"):
            load_mtp(source, target("qwen3_5"))
