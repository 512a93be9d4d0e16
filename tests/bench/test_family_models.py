"""Every family that mlx-lm loads has a tiny model, and its text is worth comparing."""

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx_lm.models
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.models import cache as caches

from bench.families import FAMILIES, configuration, tiny_model, vocabulary

PROMPT = [5, 17, 3, 88, 41, 41, 9, 23, 60, 2, 77]
RUNNABLE = [name for name, family in FAMILIES.items() if family.cannot_run is None]
METAL_ONLY = [name for name, family in FAMILIES.items() if family.group == "metal only"]
OWN_CACHE = {"sliding window": "RotatingKVCache", "own mask": "ChunkedKVCache", "own cache": "LayerCache"}
RECURRENT = ("gated delta hybrid", "mamba2 hybrid", "short convolution", "other recurrent")


@pytest.fixture(scope="module", params=RUNNABLE)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> Any:
    return tiny_model(name)


def model_modules() -> Iterator[str]:
    """The modules of mlx-lm that define a model; one that ends the process on import wants a package of its own."""
    for found in pkgutil.iter_modules(mlx_lm.models.__path__):
        try:
            module = importlib.import_module(f"mlx_lm.models.{found.name}")
        except SystemExit:
            yield found.name
        else:
            if hasattr(module, "Model") and hasattr(module, "ModelArgs"):
                yield found.name


def distinct_greedy_tokens(model: Any, prompt: list[int]) -> int:
    return len({token for token, _ in generate_step(mx.array(prompt), model, max_tokens=60)})


def layer_kinds(model: Any) -> set[str]:
    layers = caches.make_prompt_cache(model)
    parts = [part for layer in layers for part in (layer.caches if isinstance(layer, caches.CacheList) else [layer])]
    return {type(part).__name__ for part in parts}


def test_every_model_of_mlx_lm_is_listed() -> None:
    assert set(model_modules()) == {family.type for family in FAMILIES.values()}


def test_a_chunk_and_single_tokens_give_a_row_of_logits_each(name: str, model: Any) -> None:
    cache = caches.make_prompt_cache(model)
    assert model(mx.array([PROMPT]), cache=cache).shape == (1, len(PROMPT), vocabulary(name))
    for token in (4, 90):
        assert model(mx.array([[token]]), cache=cache).shape == (1, 1, vocabulary(name))


def test_the_greedy_text_wanders_over_many_tokens(model: Any) -> None:
    assert distinct_greedy_tokens(model, PROMPT) > 12


def test_no_parameter_is_left_at_zero_or_one(model: Any) -> None:
    for path, weight in tree_flatten(model.parameters()):
        assert not bool((weight == 0).all() | (weight == 1).all()), path


def test_the_model_is_tiny(model: Any) -> None:
    assert sum(weight.size for _, weight in tree_flatten(model.parameters())) < 1_000_000


def test_the_group_tells_the_caches(name: str, model: Any) -> None:
    group, kinds = FAMILIES[name].group, layer_kinds(model)
    assert ("ArraysCache" in kinds) == (group in RECURRENT)
    if group in OWN_CACHE:
        assert OWN_CACHE[group] in kinds
    elif group not in RECURRENT and group != "cross-layer kv":
        assert kinds == {"KVCache"}


@pytest.mark.parametrize("name", METAL_ONLY)
def test_a_metal_only_family_is_refused_by_its_kernel_on_a_cpu(name: str) -> None:
    with mx.stream(mx.cpu), pytest.raises((RuntimeError, ValueError), match="metal_kernel"):
        mx.eval(tiny_model(name)(mx.array([PROMPT])))


@pytest.fixture
def olmo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The model as it would be with the package that its module looks for and does not use."""
    monkeypatch.setitem(sys.modules, "hf_olmo", ModuleType("hf_olmo"))
    yield tiny_model("olmo")
    sys.modules.pop("mlx_lm.models.olmo")


def test_olmo_ends_the_process_without_its_package() -> None:
    with pytest.raises(SystemExit):
        tiny_model("olmo")


def test_olmo_with_its_package_decodes_token_by_token_only(olmo: Any) -> None:
    assert distinct_greedy_tokens(olmo, PROMPT[:1]) > 12
    with pytest.raises(ValueError, match="str"):
        olmo(mx.array([PROMPT]))


def test_the_same_seed_gives_the_same_weights_and_another_gives_others() -> None:
    first, again, other = (tiny_model("gemma3_text", seed=seed).model.layers[0].mlp for seed in (1, 1, 2))
    assert mx.array_equal(first.up_proj.weight, again.up_proj.weight)
    assert not mx.array_equal(first.up_proj.weight, other.up_proj.weight)


def test_a_change_reaches_the_text_model_of_a_wrapper_and_stays_out_of_the_family() -> None:
    assert tiny_model("gemma3", sliding_window=20, vocab_size=50).language_model.args.sliding_window == 20
    assert configuration("gemma3", vocab_size=50)["text_config"]["vocab_size"] == 50
    assert configuration("gemma3")["text_config"]["sliding_window"] == 8
