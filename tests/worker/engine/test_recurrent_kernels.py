"""The gated delta rule by kernels, in passes over trees and in plain decoding, against mlx-lm's own update."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from kernel_sets import CountingKernels, EmulatedKernels, ReferenceKernels
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk
from recurrent_passes import chain_of, deep_tree, leaves, relative_error

from bench.families import tiny_model, vocabulary
from kernels.gated_delta_tree.problem import Configuration, Recurrence
from worker.engine.kernel_set import STOCK
from worker.engine.tree import TokenTree
from worker.engine.verify.recurrent import gated_delta, hooks
from worker.engine.verify.recurrent.gated_delta import GATED_DELTA
from worker.engine.verify.recurrent.mamba2 import MAMBA2
from worker.engine.verify.recurrent.normalisation import before_norm, normalised
from worker.engine.verify.recurrent.plain import plain_pass
from worker.engine.verify.verifier import Verifier, evaluate

KEY_HEADS, HEADS, WIDTH = 1, 2, 64
# Both sides are float32 and sum in another order.
TOLERANCE = 3e-6
LOGIT_TOLERANCE = 3e-5
PREFIX = [5, 17, 3, 88, 41, 41, 9, 23]
# Widths that the kernels have; the families' own are smaller.
WIDE = {"linear_key_head_dim": 64, "linear_value_head_dim": 32, "head_dim": 64}
WIDE_BY_CHANNEL = {
    "linear_attn_config": {
        "num_heads": 2,
        "head_dim": 64,
        "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3],
        "full_attn_layers": [4],
    }
}
MODELS = {"qwen3_5": WIDE, "qwen3_next": WIDE, "kimi_linear": WIDE_BY_CHANNEL}
LAYERS = 3  # of four
CONVOLUTIONS = {"kimi_linear": 3}  # of a layer
SETS = {"references": ReferenceKernels, "emulated": EmulatedKernels}


class AskedKernels(ReferenceKernels):
    """Keeps what was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[Configuration] = set()

    def recurrence(self, configuration: Configuration) -> Recurrence | None:
        self.asked.add(configuration)
        return super().recurrence(configuration)


def call_of(nodes: int, *, by_channel: bool = False, state: mx.array | None = None) -> dict[str, Any]:
    """Arguments of mlx-lm's update, after a text unless `state` is given."""
    key = mx.random.split(mx.random.key(nodes), 8)
    shape = (1, nodes, KEY_HEADS, WIDTH)
    q, k = normalize_qk(*(mx.random.normal(shape, key=key[i]) for i in (0, 1)), inv_scale=WIDTH**-0.5, eps=1e-6)
    channels = (WIDTH,) if by_channel else ()
    return {
        "q": q,
        "k": k,
        "v": mx.random.normal((1, nodes, HEADS, WIDTH), key=key[2]),
        "a": mx.random.normal((1, nodes, HEADS, *channels), key=key[3]),
        "b": mx.random.normal((1, nodes, HEADS), key=key[4]),
        "A_log": mx.random.normal((HEADS, 1) if by_channel else (HEADS,), key=key[5]),
        "dt_bias": mx.random.normal((HEADS, *channels), key=key[6]),
        "state": mx.random.normal((1, HEADS, WIDTH, WIDTH), key=key[7]) if state is None else state,
    }


def down(call: dict[str, Any], path: list[int], **options: Any) -> tuple[mx.array, mx.array]:
    """Outputs and state of mlx-lm's update along a path."""
    rows = {name: call[name][:, mx.array(path)] for name in GATED_DELTA.rows}
    return gated_delta_update(**{**call, **rows}, **options)


TREES = {
    "deep": deep_tree(11, 6, 1000, seed=2),
    "chain": chain_of(list(range(5))),
    "star": deep_tree(8, 1, 1000, seed=3),
}


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize(
    "options",
    [{}, {"allow_neg_eigval": True}, {"by_channel": True}, {"by_channel": True, "lower_bound": -5.0}],
    ids=str,
)
@pytest.mark.parametrize("kernels", SETS)
def test_a_kernel_gives_the_outputs_of_each_path_and_the_state_after_one(
    kernels: str, options: dict[str, Any], shape: str
) -> None:
    tree = TREES[shape]
    options = dict(options)
    call = call_of(len(tree), by_channel=options.pop("by_channel", False))
    by_kernel = GATED_DELTA.kernel(GATED_DELTA.arguments((), {**call, **options}), SETS[kernels](), is_chain=False)
    assert by_kernel is not None
    y = by_kernel.outputs(tree.parents)
    for leaf in leaves(tree):
        path = tree.path(leaf)
        expected, state = down(call, path, **options)
        assert relative_error(y[0, mx.array(path)], expected[0]) < TOLERANCE
        assert relative_error(by_kernel.after(path), state) < TOLERANCE


def test_a_text_without_a_state_begins_with_none() -> None:
    call = call_of(5)
    tree = TREES["chain"]
    arguments = GATED_DELTA.arguments((), {**call, "state": None})
    by_kernel = GATED_DELTA.kernel(arguments, ReferenceKernels(), is_chain=False)
    assert by_kernel is not None
    expected, state = gated_delta_update(**{**call, "state": None})
    assert relative_error(by_kernel.outputs(tree.parents), expected) < TOLERANCE
    for after in (by_kernel.after(range(5)), by_kernel.advanced()[1]):
        assert relative_error(after, state) < TOLERANCE


UNFIT: dict[str, dict[str, Any]] = {
    "a state in 16 bits": {"state": mx.zeros((1, HEADS, WIDTH, WIDTH), dtype=mx.bfloat16)},
    "a mask": {"mask": mx.ones((1, 5), dtype=mx.bool_)},
    "two sequences": {"k": mx.zeros((2, 5, KEY_HEADS, WIDTH))},
    "more nodes than a kernel has": call_of(33),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_left_to_the_present_form(case: str) -> None:
    arguments = GATED_DELTA.arguments((), {**call_of(5), **UNFIT[case]})
    assert GATED_DELTA.kernel(arguments, ReferenceKernels(), is_chain=False) is None


def test_other_kernels_and_other_rules_are_left_to_the_present_form() -> None:
    arguments = GATED_DELTA.arguments((), call_of(5))
    assert GATED_DELTA.kernel(arguments, STOCK, is_chain=False) is None
    assert GATED_DELTA.kernel(arguments, CountingKernels(), is_chain=False) is None
    assert MAMBA2.kernel({}, ReferenceKernels(), is_chain=False) is None


def test_a_chain_is_left_to_a_kernel_for_sequences_and_a_tree_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated_delta, "has_sequence_kernel", lambda: True)
    arguments = GATED_DELTA.arguments((), call_of(5))
    assert GATED_DELTA.kernel(arguments, ReferenceKernels(), is_chain=True) is None
    assert GATED_DELTA.kernel(arguments, ReferenceKernels(), is_chain=False) is not None


def logits_of(verifier: Verifier, tree: TokenTree, path: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Those of a pass over a tree after PREFIX, and of two tokens one by one after `path` of it was committed."""
    cache = verifier.new_cache()
    verifier.prefill(PREFIX, cache)
    nodes = np.array(verifier.forward(tree, cache))
    verifier.commit(tree, path, cache)
    following = [np.array(verifier.step(mx.array([7]), cache)), np.array(verifier.forward(TokenTree(8), cache))]
    evaluate(cache)
    return nodes, np.concatenate(following)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("name", MODELS)
def test_passes_of_a_model_use_the_kernels_and_agree_with_those_without(name: str, kernels: str) -> None:
    model = tiny_model(name, **MODELS[name])
    used = SETS[kernels]()
    for tree in (deep_tree(9, 5, vocabulary(name), seed=5), chain_of([1, 2, 3, 4])):
        used.calls.clear()
        path = tree.path(len(tree) - 1)
        found = logits_of(Verifier(model, kernels=used), tree, path)
        used.calls.pop("attention", None)
        convolutions = 3 * CONVOLUTIONS.get(name, 1) * LAYERS
        assert used.calls == {
            "outputs": LAYERS,
            "commit": LAYERS,
            "advance": 2 * LAYERS,
            "convolution": convolutions,
        }
        for logits, expected in zip(found, logits_of(Verifier(model), tree, path), strict=True):
            assert relative_error(logits, expected) < LOGIT_TOLERANCE


def test_plain_decoding_with_kernels_leaves_the_state_of_plain_decoding() -> None:
    model = tiny_model("qwen3_5", **WIDE)
    kernels = ReferenceKernels()
    verifier = Verifier(model, kernels=kernels)
    cache, stock = verifier.new_cache(), make_prompt_cache(model)
    for token in PREFIX:
        logits = verifier.step(mx.array([token]), cache)
        expected = model(mx.array([[token]]), cache=stock)[0]
        assert relative_error(logits, expected) < LOGIT_TOLERANCE
    assert kernels.calls == {"advance": LAYERS * len(PREFIX), "convolution": LAYERS * len(PREFIX)}
    for layer, other in zip(cache[:LAYERS], stock[:LAYERS], strict=True):
        for state, expected in zip(layer.cache, other.cache, strict=True):
            assert relative_error(state, expected) < TOLERANCE


def test_a_thread_listens_once_at_a_time() -> None:
    with plain_pass(ReferenceKernels()):
        with pytest.raises(AssertionError), plain_pass(ReferenceKernels()):
            pass
        assert hooks._listener() is not None
    assert hooks._listener() is None


def test_plain_decoding_without_kernels_is_mlx_lms_own() -> None:
    model = tiny_model("qwen3_5", **WIDE)
    verifier = Verifier(model)
    cache, stock = verifier.new_cache(), make_prompt_cache(model)
    for token in PREFIX:
        assert mx.array_equal(verifier.step(mx.array([token]), cache), model(mx.array([[token]]), cache=stock)[0])


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_norm_of_a_pass_with_kernels_is_that_of_mlx_lm(dtype: mx.Dtype) -> None:
    q, k = (mx.random.normal((1, 5, 2, WIDTH), key=mx.random.key(seed)).astype(dtype) for seed in (1, 2))
    options = {"inv_scale": WIDTH**-0.5, "eps": 1e-6}
    rounding = {mx.float32: TOLERANCE, mx.bfloat16: 2.0**-7}[dtype]
    for found, expected in zip(normalised(q, k, **options), normalize_qk(q, k, **options), strict=True):
        assert found.dtype == dtype
        assert relative_error(found.astype(mx.float32), expected.astype(mx.float32)) < rounding


@pytest.mark.parametrize("family", MODELS)
def test_kernels_take_keys_before_the_norm_and_make_gates_of_heads(family: str) -> None:
    kernels = AskedKernels()
    tree = deep_tree(5, 3, vocabulary(family), seed=5)
    logits_of(Verifier(tiny_model(family, **MODELS[family]), kernels=kernels), tree, [0])
    by_channel = family == "kimi_linear"
    parameter_types = None if by_channel else (mx.float32, mx.float32)
    asked = {(one.by_channel, one.parameter_types, one.normed) for one in kernels.asked}
    assert asked == {(by_channel, parameter_types, False)}


def test_only_what_the_usual_norm_of_this_thread_made_last_is_known_from_before_it() -> None:
    q, k, other = (mx.random.normal((1, 5, 2, WIDTH), key=mx.random.key(seed)) for seed in (1, 2, 3))
    usual = {"inv_scale": WIDTH**-0.5, "eps": 1e-6}
    made = normalised(q, k, **usual)
    found = before_norm(*made)
    assert found is not None
    assert (found[0] is q, found[1] is k) == (True, True)
    assert before_norm(*made) is None  # asked once
    with plain_pass(ReferenceKernels()):
        made = normalised(q, k, **usual)
    assert before_norm(*made) is None  # nothing is kept from one pass to the next
    assert before_norm(made[0], normalised(q, other, **usual)[1]) is None
    for unusual in ({"inv_scale": 1.0}, {"eps": 1e-5}):
        assert before_norm(*normalised(q, k, **{**usual, **unusual})) is None


def test_models_norm_by_one_operation_where_a_pass_has_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    normed: list[tuple[int, ...]] = []

    def noted(q: mx.array, k: mx.array, **options: float) -> tuple[mx.array, mx.array]:
        normed.append(q.shape)
        return normalised(q, k, **options)

    monkeypatch.setattr(hooks, "normalised", noted)
    model = tiny_model("qwen3_5", **WIDE)
    tree = deep_tree(5, 3, vocabulary("qwen3_5"), seed=5)
    logits_of(Verifier(model), tree, [0])
    assert normed == []
    logits_of(Verifier(model, kernels=ReferenceKernels()), tree, [0])
    # The tree and two tokens after it; the prefix is mlx-lm's own.
    assert [rows for _, rows, *_ in normed] == [5] * LAYERS + [1] * (2 * LAYERS)
