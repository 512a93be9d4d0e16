"""Learned positions, position-scaled queries and a fused rope kernel: every node stands at its depth."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from adapted_passes import (
    ACCEPTED,
    TOLERANCE,
    WRONG,
    chain_of,
    error,
    error_after_commit,
    pass_error,
    prompt,
    tree_of,
)
from mlx_lm.models import ministral3, mistral4, muse_spark
from mlx_lm.models.cache import KVCache

from bench.families import tiny_model
from worker.engine.tree import TokenTree
from worker.engine.verify.adapters import apply_adapters
from worker.engine.verify.adapters.fused_rope import adapt_fused_rope
from worker.engine.verify.caches import adopt
from worker.engine.verify.tree_pass import tree_pass

# The scale of queries steps up at every multiple of the 32 positions of the original context: the trees pass one.
PREFIX = {"gpt2": 11, "gpt_bigcode": 11, "ministral3": 29, "mistral4": 62, "mistral3_ministral3": 29}
NAMES = {
    "gpt2": "learned positions",
    "gpt_bigcode": "learned positions",
    "ministral3": "position-scaled queries",
    "mistral4": "position-scaled queries",
    "mistral3_ministral3": "position-scaled queries",
}


@pytest.fixture
def without_query_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions as mlx-lm wrote them; another test may have hooked them."""
    for namespace in (ministral3, mistral4):
        hooked = namespace._get_llama_4_attn_scale
        monkeypatch.setattr(namespace, "_get_llama_4_attn_scale", getattr(hooked, "__wrapped__", hooked))


@pytest.mark.parametrize("family", PREFIX)
def test_every_node_gets_the_logits_of_its_own_path(family: str) -> None:
    model = tiny_model(family)
    assert NAMES[family] in apply_adapters(model).names
    prefix = prompt(PREFIX[family])
    assert pass_error(model, prefix, tree_of()) < TOLERANCE
    assert pass_error(model, prefix, chain_of(6)) < TOLERANCE
    assert error_after_commit(model, prefix, tree_of(), ACCEPTED) < TOLERANCE


@pytest.mark.parametrize("family", PREFIX)
def test_without_the_adapter_the_logits_are_wrong(family: str, without_query_scale: None) -> None:
    assert pass_error(tiny_model(family), prompt(PREFIX[family]), tree_of()) > WRONG


def test_a_quantized_table_of_positions_is_adapted_too() -> None:
    model = tiny_model("gpt2")
    model.model.wpe = model.model.wpe.to_quantized(group_size=32, bits=8)
    apply_adapters(model)
    assert pass_error(model, prompt(11), tree_of()) < TOLERANCE


def rotated(x: mx.array, base: float, offset: Any) -> mx.array:
    """Rope over neighbouring pairs, written out. x: [batch, tokens, heads, size]; offset: one, or one per batch row."""
    batch, tokens, _, size = x.shape
    start = np.broadcast_to(np.array(offset).reshape(-1, 1), (batch, 1))
    angles = (start + np.arange(tokens))[..., None] * base ** (-np.arange(0, size, 2) / size)
    cos, sin = (mx.array(f(angles).astype(np.float32))[:, :, None] for f in (np.cos, np.sin))
    even, odd = x[..., ::2], x[..., 1::2]
    return mx.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(x.shape)


def norm_rope(
    qkvg: mx.array,
    *,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    eps: float,
    query_scale: float,
    rope_base: float,
    offset: Any,
) -> list[mx.array]:
    """What the docstring of mlx-lm's kernel promises, in plain operations."""
    rows = qkvg[..., : (n_heads + n_kv_heads) * head_dim].reshape(*qkvg.shape[:-1], -1, head_dim)
    rows = mx.fast.rms_norm(rows, None, eps)
    q, k = rows[..., :n_heads, :] * query_scale, rows[..., n_heads:, :]
    return [rotated(q, rope_base, offset), rotated(k, rope_base, offset)]


def norm_gate(output: mx.array, gate: mx.array, *, eps: float) -> mx.array:
    """Another kernel of the same attention, which acts on each row alone."""
    rows = mx.fast.rms_norm(output, None, eps).transpose(0, 2, 1, 3)
    return rows.reshape(gate.shape) * mx.sigmoid(gate)


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(muse_spark, "qk_norm_rope", norm_rope)
    monkeypatch.setattr(muse_spark, "rms_norm_sigmoid_gate", norm_gate)
    mx.random.seed(3)
    sizes = SimpleNamespace(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        qk_scale_factor=5.0,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
    )
    return muse_spark.Attention(sizes, use_rope=True)


def fused_rope_error(attention: Any, tree: TokenTree) -> float:
    """A pass of the attention over a tree of random rows against its rows one by one, after 7 rows."""
    before, rows = mx.random.normal((1, 7, 32)), mx.random.normal((1, len(tree), 32))
    cache = KVCache()
    attention(before, "causal", cache)
    alone = []
    for node in range(len(tree)):
        path = tree.path(node)
        for row in path:
            output = attention(rows[:, row : row + 1], None, cache)
        alone.append(np.array(output[0, 0]))
        cache.trim(len(path))
    adopt([cache])
    with tree_pass(tree):
        together = attention(rows, cache.make_mask(len(tree)), cache)
    return error(np.array(together[0]), np.stack(alone))


def test_a_fused_rope_sees_each_node_at_its_depth(attention: Any) -> None:
    assert fused_rope_error(attention, tree_of()) > WRONG
    assert adapt_fused_rope(attention)
    assert fused_rope_error(attention, tree_of()) < TOLERANCE
    assert fused_rope_error(attention, chain_of(5)) < TOLERANCE
