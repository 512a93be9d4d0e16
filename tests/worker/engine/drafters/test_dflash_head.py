"""The target's head as block drafters use it: its logits, made once, for all tokens or for some."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from dflash_checkpoints import FULL, first_config, random_tensors, second_config, write
from drafter_rig import DrafterCase, Rig

from api.errors import ModelError
from bench.families import tiny_model
from worker.engine.drafters.dflash import DFlashSettings, load_dflash, read_dflash_config
from worker.engine.drafters.dflash.head import DraftHead
from worker.engine.drafters.protocol import DraftLimits
from worker.engine.verify.taps import Taps

IDS = [90, 4, 17, 55, 3, 60, 61, 96, 17]
STATES = mx.random.normal((5, 64), key=mx.random.key(3))


def head_of(target: Any, tmp_path: Path, settings: DFlashSettings | None = None, **own: Any) -> DraftHead:
    config = first_config([FULL], len(target.layers))
    config["dflash_config"] |= own
    read = read_dflash_config(write(tmp_path, config, {}))
    return DraftHead(target, Taps(target), read, settings or DFlashSettings())


def quantised(family: str) -> Any:
    """A target whose head, or tied embedding, is packed."""
    model = tiny_model(family)
    nn.quantize(model, group_size=32, bits=4, class_predicate=lambda path, part: "lm_head" in path or "embed" in path)
    return model


TARGETS: dict[str, Any] = {
    "a head": lambda: tiny_model("llama"),
    "a tied embedding": lambda: tiny_model("qwen3"),
    "a packed head": lambda: quantised("llama"),
    "a packed tied embedding": lambda: quantised("qwen3"),
    "a wrapped target": lambda: tiny_model("qwen3_5"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_some_columns_are_those_of_the_targets_own_logits(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]()
    expected = np.array(Taps(target).head(STATES))
    whole = head_of(target, tmp_path)
    assert whole.ids is None
    np.testing.assert_allclose(np.array(whole(STATES)), expected, atol=1e-5)
    some = head_of(target, tmp_path, DFlashSettings(vocabulary=IDS))
    assert some.ids is not None
    assert some.ids.tolist() == sorted(set(IDS))
    assert some(STATES).dtype == mx.float32
    np.testing.assert_allclose(np.array(some(STATES)), expected[:, sorted(set(IDS))], atol=1e-5)
    # The target's own head is left alone.
    np.testing.assert_array_equal(np.array(Taps(target).head(STATES)), expected)


def test_a_bias_belongs_to_its_row(tmp_path: Path) -> None:
    target = tiny_model("llama")
    target.lm_head["bias"] = mx.arange(97) / 50
    some = head_of(target, tmp_path, DFlashSettings(vocabulary=IDS))
    expected = Taps(target).head(STATES)[:, mx.array(sorted(set(IDS)))]
    np.testing.assert_allclose(np.array(some(STATES)), np.array(expected), atol=1e-5)


def test_ids_that_no_tokenizer_knows_are_cut_off(tmp_path: Path) -> None:
    target = tiny_model("llama")
    assert head_of(target, tmp_path, DFlashSettings(addressable=70))(STATES).shape == (5, 70)
    some = head_of(target, tmp_path, DFlashSettings(addressable=70, vocabulary=IDS))
    assert some.ids is not None
    assert some.ids.tolist() == [3, 4, 17, 55, 60, 61]
    assert some(STATES).shape == (5, 6)


@pytest.mark.parametrize(
    ("family", "options"), [("cohere", {"logit_scale": 0.5}), ("granite", {"logits_scaling": 4.0}), ("gemma2", {})]
)
def test_logits_that_the_config_does_not_describe_are_the_targets_own(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    target = tiny_model(family, **options)
    states = STATES * 20
    head = head_of(target, tmp_path, DFlashSettings(vocabulary=IDS), output_multiplier=0.3)
    np.testing.assert_allclose(np.array(head(states)), np.array(Taps(target).head(states)), rtol=1e-4, atol=1e-5)
    assert head.ids is None, "rows of the bare head would lack what the target does with its logits"


def test_a_config_that_restates_the_targets_cap_allows_for_some_columns(tmp_path: Path) -> None:
    target = tiny_model("gemma2")
    states = STATES * 20
    head = head_of(target, tmp_path, DFlashSettings(vocabulary=IDS), final_logit_softcapping=30.0)
    expected = np.array(Taps(target).head(states))[:, sorted(set(IDS))]
    np.testing.assert_allclose(np.array(head(states)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (DFlashSettings(vocabulary=[3, 97]), "ids from 3 to 97; the target has 0 to 96"),
        (DFlashSettings(vocabulary=[-1, 5]), "ids from -1 to 5"),
        (DFlashSettings(vocabulary=[]), "no id"),
        (DFlashSettings(vocabulary=[80, 81], addressable=70), "no id that the tokenizer knows"),
    ],
)
def test_a_vocabulary_that_cannot_be_guessed_from_is_refused(
    settings: DFlashSettings, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        head_of(tiny_model("llama"), tmp_path, settings)


@pytest.mark.parametrize("make", [first_config, second_config])
def test_a_draft_from_some_of_the_vocabulary_has_the_odds_among_them(make: Any, tmp_path: Path) -> None:
    target = tiny_model("qwen3")
    config = make([FULL], 3)
    if make is second_config:
        config["dflash_config"]["selector_top_k"] = 97
    directory = write(tmp_path, config, random_tensors(config))
    ids = list(range(0, 97, 3))

    def draft(**fields: Any) -> dict[int, float]:
        """The odds of the first slot's tokens."""
        settings = DFlashSettings(min_value=1e-20, children=97, **fields)
        rig = Rig(DrafterCase(target, lambda: load_dflash(directory, target, settings), 97))
        rig.prompt([5, 17, 3, 88, 41])
        tree = rig.draft(DraftLimits(98, 1))
        return dict(zip(tree.tokens[1:], tree.confidences[1:], strict=True))

    whole, some = draft(), draft(vocabulary=ids)
    assert set(some) == set(ids)
    among = sum(whole[token] for token in ids)
    assert 0.1 < among < 0.9
    for token in ids:
        assert some[token] == pytest.approx(whole[token] / among, rel=1e-3)
