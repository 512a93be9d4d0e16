"""An engine whose model computes with kernels: its text, and what it says and keeps of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import pytest
from engine_maker import EngineFor
from family_exactness import Case, engine_under_trees
from kernel_sets import EmulatedKernels, ReferenceKernels
from plain_decoding import plain_tokens
from scripted_drafters import ScriptedDrafter

from bench.families import tiny_model
from kernels.probing import Choice
from kernels.qmm.reference import Product, reference
from kernels.qmm.shapes import Matrix
from kernels.tree_attention.problem import TreeAttention
from worker.engine import engine as engine_module
from worker.engine import kernel_set
from worker.engine import profile as profile_module
from worker.engine.budget import CostCurve
from worker.engine.drafters.protocol import NoDrafter
from worker.engine.engine import Engine, EngineOptions
from worker.engine.kernel_set import STOCK, MachineKernels, machine_kernels
from worker.engine.linears import ALL_ROWS, install_kernels
from worker.engine.linears.products import KernelLinear
from worker.engine.loading import Target
from worker.engine.plain_text import plain_text
from worker.engine.profile import Profile, Profiles, measure_profile, pair_key, profile_key
from worker.engine.rehearsal import with_kernels, without_harm
from worker.engine.tree import TokenTree
from worker.engine.verdicts import verdict_key
from worker.engine.verify.selfcheck import Verdict, decide_mode
from worker.engine.verify.verifier import Mode

# Widths that the kernels have.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 64},
    "qwen3": {"head_dim": 64},
    "gemma3_text": {"head_dim": 64},
    "qwen3_5": {"head_dim": 64, "linear_key_head_dim": 64, "linear_value_head_dim": 32},
}


def quantized(name: str) -> Any:
    model = tiny_model(name, **MODELS[name])
    nn.quantize(model, group_size=32, bits=4)
    mx.eval(model.parameters())
    return model


def with_set(engine: Engine, kernels: Any) -> Engine:
    """The engine again, with its model in memory computing with `kernels`."""
    again = Engine(with_kernels(engine.target, kernels), engine.profile, engine.options)
    again.drafter = engine.drafter
    return again


def assert_exact(engine_for: EngineFor, name: str, kernels: Any, case: Case, nodes: int) -> None:
    model = quantized(name)
    expected = case.plain(model)
    engine = with_set(engine_under_trees(engine_for, model, "tree", expected, seed=3, nodes=nodes), kernels)
    kernels.calls.clear()
    result, stats = engine.generate(case.request)
    assert result.token_ids == expected
    assert stats.kernels == kernels.name
    assert stats.accepted_tokens > case.tokens // 5
    # Siblings together: four products of a layer at most, and the head, in each pass.
    assert 0 < kernels.calls["product"] <= (stats.passes + 1) * (4 * len(model.layers) + 1)


@pytest.mark.parametrize("name", MODELS)
def test_the_text_under_references_is_that_of_plain_decoding(engine_for: EngineFor, name: str) -> None:
    assert_exact(engine_for, name, ReferenceKernels(), Case(tokens=60), 32)


@pytest.mark.parametrize("name", ["llama", "qwen3_5"])
def test_the_text_under_the_metal_texts_is_that_of_plain_decoding(engine_for: EngineFor, name: str) -> None:
    assert_exact(engine_for, name, EmulatedKernels(), Case(prompt="The-fox", tokens=12), 8)


def test_nothing_is_tried_on_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: mx.cpu)
    assert machine_kernels() is STOCK


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> MachineKernels:
    """A machine on which the product and the draw have kernels: their references."""
    found: dict[str, Choice[Any]] = {
        "qmm": Choice("tensor", reference),
        "tree_attention": Choice("reference", None),
        "gated_delta_tree": Choice("reference", None),
        "tree_convolution": Choice("reference", None),
        "sample": Choice("metal", None),
    }
    for name, choice in found.items():
        monkeypatch.setattr(getattr(kernel_set, name), "chosen", lambda *_, choice=choice, **__: choice)
    monkeypatch.setattr(kernel_set.shapes, "complaints", lambda *_: {})
    return MachineKernels()


def test_kernels_are_named_after_what_passes_and_draws_ask_for(engine_for: EngineFor, machine: MachineKernels) -> None:
    engine = with_set(engine_for(quantized("llama")), machine)
    assert engine.target.kernels.name == "qmm:tensor sample:metal"
    dense = MachineKernels()
    assert with_kernels(engine_for(tiny_model("llama")).target, dense).kernels.name == "sample:metal"
    assert MachineKernels().name == "stock"


def test_a_product_that_multiplies_nothing_rightly_is_not_named(
    engine_for: EngineFor, machine: MachineKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {32: Choice("tensor", reference), 64: Choice("simdgroup", lambda *operands: 1 + reference(*operands))}
    monkeypatch.setattr(kernel_set.qmm, "chosen", lambda *_, group_size, **__: chosen[group_size])
    model = tiny_model("llama")
    nn.quantize(model.model, group_size=32, bits=4)
    nn.quantize(model, group_size=64, bits=4, class_predicate=lambda path, _: path == "lm_head")
    assert with_kernels(engine_for(model).target, machine).kernels.name == "qmm:tensor sample:metal"
    assert machine.product(mx.float32, 64, 4) is None

    wrong = MachineKernels()
    chosen[32] = chosen[64]
    target = with_kernels(engine_for(quantized("llama")).target, wrong)
    assert target.products is not None
    assert (target.products.products, target.kernels.name) == ([], "sample:metal")
    assert verdict_key(target)["kernels"] == "sample:metal"


def test_a_matrix_that_a_child_process_went_wrong_with_is_not_tried_in_this_one(
    engine_for: EngineFor, machine: MachineKernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[set[tuple[int, int]], Path | None]] = []
    shapes: set[tuple[int, int]] = set()
    told: list[str] = []

    def complaints(chosen: dict[Matrix, str], folder: Path | None) -> dict[Matrix, str]:
        assert set(chosen.values()) <= {"tensor"}
        asked.append(({(matrix.columns, matrix.depth) for matrix in chosen}, folder))
        return {matrix: "the GPU fell over" for matrix in chosen if matrix.columns == 97}

    def noted(*operands: Any) -> mx.array:
        shapes.add((operands[1].shape[0], operands[0].shape[-1]))
        return reference(*operands)

    monkeypatch.setattr(kernel_set.shapes, "complaints", complaints)
    monkeypatch.setattr(kernel_set.qmm, "chosen", lambda *_, **__: Choice("tensor", noted))
    model = quantized("llama")
    target = with_kernels(engine_for(model).target, MachineKernels(tmp_path, told.append))
    # q, k and v together; o; gate and up together; down; the head.
    queries, keys = 4 * 64, 2 * 64
    together = {(queries + 2 * keys, 64), (64, queries), (256, 64), (64, 128), (97, 64)}
    assert asked[0] == (together, tmp_path)
    assert shapes == together - {(97, 64)}
    assert target.products is not None
    assert "lm_head" not in target.products.alone
    assert told == [
        "kernel qmm, variant tensor, multiplies no weights [97, 64] on this machine: the GPU fell over "
        "(cidermill doctor --kernels tries it again)"
    ]


def test_variants_are_named_side_by_side(engine_for: EngineFor, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {32: Choice("tensor", reference), 64: Choice("simdgroup", reference)}
    monkeypatch.setattr(kernel_set.qmm, "chosen", lambda *_, group_size, **__: chosen[group_size])
    kernels = MachineKernels()
    kernels.product(mx.float32, 32, 4)
    kernels.product(mx.float32, 64, 4)
    kernels.product(mx.bfloat16, 64, 4)
    assert kernels.name == "qmm:simdgroup,tensor"


def test_a_machine_of_whose_kernels_none_is_used_computes_as_stock(
    engine_for: EngineFor, machine: MachineKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kernel in ("qmm", "sample"):
        monkeypatch.setattr(getattr(kernel_set, kernel), "chosen", lambda *_, **__: Choice("reference", None))
    assert with_kernels(engine_for(quantized("llama")).target, machine).kernels is STOCK


@pytest.mark.parametrize(
    ("mode", "drafts", "named"),
    [
        ("tree", True, "qmm:tensor tree_attention:metal gated_delta_tree:metal tree_convolution:metal sample:metal"),
        ("tree", False, "qmm:tensor gated_delta_tree:metal sample:metal"),
        ("chain", True, "qmm:tensor sample:metal"),
        ("plain", False, "qmm:tensor sample:metal"),
    ],
)
def test_an_engine_names_the_kernels_of_its_own_passes(
    engine_for: EngineFor, mode: Mode, drafts: bool, named: str
) -> None:
    drafter = ScriptedDrafter(lambda *_: None) if drafts else NoDrafter()
    engine = engine_for(quantized("llama"), mode=mode, drafter=drafter)
    kernels = ReferenceKernels()
    kernels.name = "qmm:tensor tree_attention:metal gated_delta_tree:metal tree_convolution:metal sample:metal"
    engine.target = replace(engine.target, kernels=kernels)
    assert engine.description.kernels == named


def test_what_is_measured_and_learned_is_kept_by_the_kernels_and_their_texts(
    engine_for: EngineFor, machine: MachineKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = engine_for(quantized("llama")).target
    stock = [verdict_key(target), profile_key(target, 16), pair_key(target, "suffix")]
    assert all(key["kernels"] == "stock" and "kernel_texts" not in key for key in stock)

    ours = with_kernels(target, machine)
    keys = [verdict_key(ours), profile_key(ours, 16), pair_key(ours, "suffix")]
    assert all(key["kernels"] == "qmm:tensor sample:metal" for key in keys)

    monkeypatch.setattr(kernel_set, "texts_digest", lambda *homes: f"other texts of {homes}")
    changed = verdict_key(with_kernels(target, MachineKernels()))
    assert changed["kernel_texts"] == "other texts of ('kernels.qmm', 'kernels.sample')"
    assert changed["kernels"] == keys[0]["kernels"]
    assert changed["kernel_texts"] != keys[0]["kernel_texts"]


def test_an_engine_over_the_same_model_has_the_same_kernels(engine_for: EngineFor, tmp_path: Path) -> None:
    engine = with_set(engine_for(quantized("llama")), ReferenceKernels())
    assert engine.with_options(replace(engine.options, max_tree_nodes=4)).verifier.kernels is engine.target.kernels
    with pytest.raises(ValueError, match="load the model again"):
        engine.with_options(EngineOptions(tmp_path, kernels="off"))


class Unsighted(ReferenceKernels):
    """Its attention sees nothing of the tree."""

    name = "unsighted"

    def attention(self, dtype: mx.Dtype, head_size: int) -> TreeAttention | None:
        return lambda queries, *_, **__: mx.zeros_like(queries)


def test_kernels_that_spoil_trees_are_not_used(engine_for: EngineFor, tmp_path: Path) -> None:
    plain = engine_for(quantized("llama")).target
    told: list[str] = []

    def find(target: Target) -> Profile:
        return Profiles(tmp_path / "profiles", target, 2, told.append).find()

    target = with_kernels(plain, Unsighted())
    profile = find(target)
    assert profile.verification == "chain"
    target, profile = without_harm(target, profile, find, told.append)
    assert (target.kernels, profile.verification) == (STOCK, "tree")
    assert told[-1] == "tiny computes without kernels (unsighted): its passes are not right with them"
    assert not any(isinstance(module, KernelLinear) for module in target.model.modules())

    target = with_kernels(plain, ReferenceKernels())
    profile = find(target)
    assert profile.verification == "tree"
    assert without_harm(target, profile, find, told.append) == (target, profile)


@pytest.fixture
def loaded(engine_for: EngineFor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Engine]:
    """loaded(kernels): a quantised llama, loaded on a machine that has `kernels`."""
    target = engine_for(quantized("llama")).target
    monkeypatch.setattr(profile_module, "rows_that_gain", lambda *_: ALL_ROWS)  # references gain by chance only

    def load(kernels: Any, *, option: Literal["auto", "off"] = "auto", fresh: bool = False) -> Engine:
        monkeypatch.setattr(engine_module, "load_target", lambda *_, **__: target)
        monkeypatch.setattr(engine_module, "machine_kernels", lambda *_: kernels)
        options = EngineOptions(tmp_path, max_tree_nodes=2, kernels=option)
        return Engine.load(target.spec, options, fresh=fresh)

    return load


def test_an_engine_is_loaded_with_the_kernels_of_the_machine(loaded: Callable[..., Engine]) -> None:
    kernels = ReferenceKernels()
    engine = loaded(kernels)
    assert (engine.target.kernels, engine.verifier.kernels) == (kernels, kernels)
    kernels.calls.clear()
    tree = TokenTree(5)
    tree.add(0, 7, 1.0)
    tree.add(0, 8, 1.0)
    mx.eval(engine.verifier.forward(tree, engine.verifier.new_cache()))
    assert kernels.calls == {"product": 4 * 3 + 1, "attention": 3}


def test_an_engine_is_loaded_without_kernels_where_they_are_off(loaded: Callable[..., Engine]) -> None:
    kernels = ReferenceKernels()
    engine = loaded(kernels, option="off")
    assert (engine.target.kernels, engine.verifier.kernels, engine.target.products) == (STOCK, STOCK, None)
    assert engine.description.kernels == "stock"
    assert kernels.calls == {}


@pytest.mark.parametrize("fresh", [False, True])
def test_an_engine_is_loaded_without_kernels_that_spoil_trees(
    loaded: Callable[..., Engine], tmp_path: Path, fresh: bool
) -> None:
    curve = CostCurve((1, 2), (1e6, 2e6))
    stock = loaded(STOCK)
    Profiles(tmp_path / "profiles", stock.target, 2, pytest.fail)._store(Profile("tree", curve))
    engine = loaded(Unsighted(), fresh=fresh)
    assert (engine.target.kernels, engine.verifier.mode) == (STOCK, "tree")
    assert (engine.profile.curve == curve) == (not fresh)


def test_a_stored_profile_says_which_rows_go_to_the_kernel(
    engine_for: EngineFor, machine: MachineKernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[int] = []

    def noted(*operands: Any) -> mx.array:
        asked.append(operands[0].shape[-2])
        return reference(*operands)

    monkeypatch.setattr(kernel_set.qmm, "chosen", lambda *_, **__: Choice("tensor", noted))
    target = with_kernels(engine_for(quantized("llama")).target, machine)
    profile = Profile("tree", CostCurve((1, 32), (1.0, 2.0)), first_rows=2, last_rows=15)
    Profiles(tmp_path / "profiles", target, 16, pytest.fail)._store(profile)
    stored = Profiles(tmp_path / "profiles", target, 16, pytest.fail).find()
    engine = Engine(target, stored, EngineOptions(tmp_path))
    asked.clear()
    for rows in (1, 2, 15, 16):
        engine.verifier.prefill(list(range(rows)), engine.verifier.new_cache())
    assert set(asked) == {2, 15}


def test_a_model_without_trees_keeps_its_kernels(engine_for: EngineFor) -> None:
    chain = Profile("chain", CostCurve((1,), (1.0,)))
    kernels = ReferenceKernels()
    target = with_kernels(engine_for(quantized("llama")).target, kernels)
    target, profile = without_harm(target, chain, lambda _: chain, pytest.fail)
    assert (target.kernels, profile) == (kernels, chain)
    assert any(isinstance(module, KernelLinear) for module in target.model.modules())


def to_bfloat16(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> mx.array:
    """Summed in float32, but no more exact than bfloat16."""
    wide_x, wide_scales, wide_biases = (array.astype(mx.float32) for array in (x, scales, biases))
    return reference(wide_x, w, wide_scales, wide_biases, group_size, bits).astype(mx.bfloat16).astype(x.dtype)


class Degrading(ReferenceKernels):
    """Its products become coarse once they are installed."""

    name = "degrading"
    coarse = False

    def product(self, dtype: mx.Dtype, group_size: int, bits: int) -> Product | None:
        return lambda *operands: (to_bfloat16 if self.coarse else reference)(*operands)


def test_a_product_that_agrees_with_itself_alone_is_found_by_the_self_check(
    engine_for: EngineFor, tmp_path: Path
) -> None:
    kernels = Degrading()
    target = with_kernels(engine_for(quantized("llama")).target, kernels)
    assert decide_mode(target.model, 97, mx.float32, kernels, target.products) == Verdict("tree")
    kernels.coarse = True
    verdict = decide_mode(target.model, 97, mx.float32, kernels, target.products)
    assert (verdict.mode, set(verdict.refused)) == ("plain", {"tree", "chain"})
    assert target.products is not None
    assert target.products.rows == ALL_ROWS

    told: list[str] = []
    profiles = {kernels: Profile("plain", CostCurve((1,), (1.0,))), STOCK: Profile("tree", CostCurve((1,), (1.0,)))}
    target, profile = without_harm(target, profiles[kernels], lambda one: profiles[one.kernels], told.append)
    assert (target.kernels, profile) == (STOCK, profiles[STOCK])


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_product_is_held_to_the_tolerance_of_its_type(dtype: mx.Dtype) -> None:
    model = quantized("llama")
    model.set_dtype(dtype)
    kernels = Degrading()
    kernels.coarse = True
    assert bool(install_kernels(model, kernels).products) == (dtype == mx.bfloat16)


@pytest.mark.parametrize(("ours", "without"), [("plain", "chain"), ("plain", "plain")])
def test_kernels_that_nothing_has_shown_to_be_right_are_not_used(
    engine_for: EngineFor, ours: Mode, without: Mode
) -> None:
    target = with_kernels(engine_for(quantized("llama")).target, ReferenceKernels())
    found = Profile(without, CostCurve((1,), (1.0,)))
    told: list[str] = []
    target, profile = without_harm(target, Profile(ours, CostCurve((1,), (2.0,))), lambda _: found, told.append)
    assert (target.kernels, profile) == (STOCK, found)
    assert told == ["tiny computes without kernels (references): its passes are not right with them"]


def test_only_rows_that_were_measured_to_gain_go_to_the_kernel(
    engine_for: EngineFor, machine: MachineKernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = with_kernels(engine_for(quantized("llama")).target, machine)
    assert target.products is not None
    asked: list[range] = []
    for product in target.products.products:
        monkeypatch.setattr(type(product), "let", lambda _, rows: asked.append(rows))

    found: dict[str, range] = {"rows": range(2, 16)}

    def measured(*_: Any) -> range:
        asked.clear()  # of what the self-check suspended
        return found["rows"]

    monkeypatch.setattr(profile_module, "rows_that_gain", measured)
    profile = measure_profile(target, 2)
    assert profile.rows == range(2, 16)
    assert set(asked) == {range(2, 16)}

    engine = Engine(target, profile, EngineOptions(tmp_path))
    assert engine.description.kernels == "qmm:tensor sample:metal"
    found["rows"] = range(0)
    engine = Engine(target, measure_profile(target, 2), EngineOptions(tmp_path))
    assert asked[-1] == range(0)
    assert engine.description.kernels == "sample:metal"


def test_the_reference_text_is_decoded_without_kernels(engine_for: EngineFor) -> None:
    kernels = ReferenceKernels()
    target = with_kernels(engine_for(quantized("llama")).target, kernels)
    assert target.products is not None
    target.products.let(range(1, 8))
    kernels.calls.clear()
    expected = plain_tokens(quantized("llama"), [5, 9, 20], 4, end_tokens=[0])
    assert plain_text(target, [5, 9, 20], 4).tokens == expected
    assert kernels.calls["product"] == 0
    plain_tokens(target.model, [5, 9, 20], 1)
    assert kernels.calls["product"] > 0
    assert target.products.rows == range(1, 8)
