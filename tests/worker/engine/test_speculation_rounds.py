"""Faults of public speculative engines that this one must not have: what a round leaves behind.

The target is a function from token prefix to logits (`ScriptedModel`), the drafter a script. Tokens are characters of
the toy vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from engine_maker import EngineFor
from plain_decoding import plain_tokens
from scripted_drafters import ScriptedDrafter, add_chain, chain_of
from scripted_model import LogitsOf, ScriptedModel, cached_tokens, continuing, one_hot
from tiny_models import VOCABULARY, tiny_model
from toy_requests import END, PROMPT, PROMPT_IDS, WIDTHS, answer, held, ids, request
from toy_tokenizer import text_of, token_id, toy_tokenizer

from worker.engine.budget import CostCurve
from worker.engine.drafters.protocol import DraftLimits
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.tree import TokenTree
from worker.engine.verify.verifier import Mode


# Processors see every row, with its own history.
def plain_loop(logits_of: LogitsOf, count: int, *, frequency: float = 0.0) -> list[int]:
    """Greedy decoding with penalties, one token at a time, written out."""
    tokens = list(PROMPT_IDS)
    while len(tokens) < len(PROMPT_IDS) + count:
        row = np.array(logits_of(tokens), dtype=np.float64)
        for token in tokens[-20:]:
            row[token] -= frequency
        tokens.append(int(np.argmax(row)))
    return tokens[len(PROMPT_IDS) :]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_banned_token_never_comes_though_draft_and_raw_argmax_say_so(engine_for: EngineFor, width: int) -> None:
    seven, eight = ids("78")

    def logits_of(prefix: Sequence[int]) -> list[float]:
        row = one_hot(VOCABULARY, seven)
        row[eight] = 9.0
        return row

    drafter = ScriptedDrafter(chain_of([seven, eight] * 10, width))
    engine = engine_for(ScriptedModel(logits_of), drafter=drafter)
    result = answer(engine, max_tokens=12, logit_bias={seven: -100.0})
    assert result.token_ids == [eight] * 12
    mixed = ScriptedDrafter(chain_of([eight] * 20, width))
    engine = engine_for(ScriptedModel(logits_of), drafter=mixed)
    assert answer(engine, max_tokens=12, logit_bias={seven: -100.0}).token_ids == [eight] * 12


@pytest.mark.parametrize("processor", ["min_p", "logit_bias", "repetition", "presence", "frequency", "top_k"])
def test_every_verified_row_gets_every_processor(engine_for: EngineFor, processor: str) -> None:
    # Without the processor the target would say only "7"; with it, never, or not twice within the window.
    seven, eight = ids("78")

    def logits_of(_: Sequence[int]) -> list[float]:
        row = [-30.0] * VOCABULARY
        row[seven], row[eight] = 1.0, 0.9
        return row

    values: dict[str, Any] = {
        "min_p": {"min_p": 0.99, "temperature": 5.0},
        "top_k": {"top_k": 1, "temperature": 5.0},
        "logit_bias": {"logit_bias": {seven: -5.0}},
        "repetition": {"repetition_penalty": 2.0},
        "presence": {"presence_penalty": 2.0},
        "frequency": {"frequency_penalty": 2.0},
    }[processor]
    texts = set()
    for width in (0, 1, 4, 8):
        engine = engine_for(ScriptedModel(logits_of), drafter=ScriptedDrafter(chain_of([seven] * 99, width)))
        texts.add(tuple(answer(engine, max_tokens=9, **values).token_ids))
    (tokens,) = texts
    if processor in ("min_p", "top_k"):
        assert set(tokens) == {seven}
    elif processor == "logit_bias":
        assert set(tokens) == {eight}
    else:
        assert tokens[:2] == (seven, eight)


@pytest.mark.parametrize("width", [0, 4, 5, 8])
def test_the_penalty_state_is_that_of_plain_decoding_after_acceptance_and_rejection(
    engine_for: EngineFor, width: int
) -> None:
    five, six, nine = ids("569")
    raw = [five, five, six, six]

    def logits_of(prefix: Sequence[int]) -> list[float]:
        place = len(prefix) - len(PROMPT_IDS)
        row = [0.0] * VOCABULARY
        if place < 4:
            row[raw[place]] = 10.0
            return row
        # Afterwards counts decide: 5 and 6 stand at 2 each, and 9 would win only if it had not been counted.
        row[five], row[six], row[nine] = 5.0, 4.9, 3.5
        return row

    draft = [*raw, nine, nine]
    drafter = ScriptedDrafter(chain_of(draft, width))
    engine = engine_for(ScriptedModel(logits_of), drafter=drafter)
    result = answer(engine, max_tokens=14, frequency_penalty=1.0)
    assert result.token_ids[:4] == raw
    assert result.token_ids == plain_loop(logits_of, 14, frequency=1.0)


# Recurrent state.
@pytest.mark.parametrize("mode", ["tree", "chain", "plain"])
@pytest.mark.parametrize("family", ["qwen3_next", "gemma3_text"])
def test_a_model_that_cannot_go_back_loses_no_token_when_every_round_rejects_one(
    engine_for: EngineFor, family: str, mode: Mode
) -> None:
    model = tiny_model(family)
    engine = engine_for(model, mode=mode, nodes=8)
    for prompt in ["count1to20", "count1to20", "count1to9", "x"]:
        expected = plain_tokens(model, ids(prompt), 30)
        wrong = [(token + 1) % VOCABULARY for token in expected]

        def script(emitted: int, tree: TokenTree, limits: DraftLimits, right=expected, wrong=wrong) -> None:  # type: ignore[no-untyped-def]
            add_chain(tree, [*right[emitted : emitted + 2], *wrong[emitted + 2 : emitted + 3]], limits)

        engine.drafter = ScriptedDrafter(script)
        result, stats = engine.generate(request(prompt=prompt, max_tokens=30, ignore_eos=True))
        assert result.token_ids == expected
        assert stats.passes == (10 if mode != "plain" else 30)


# Off-by-one roll-back, in three rounds that accept 0, 2 and 4 of four drafts.
def test_target_and_drafter_keep_exactly_the_accepted_rows(engine_for: EngineFor) -> None:
    wanted = ids("abcdefghijklmnopqrst")
    right = iter([0, 2, 4])
    lengths: list[int] = []

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        lengths.append(len(cached_tokens(engine._session.cache)))
        count = next(right, 0)
        add_chain(tree, [*wanted[emitted : emitted + count], *ids("####")][:4], limits)

    drafter = ScriptedDrafter(script)
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=drafter)
    result = answer(engine, max_tokens=12)
    assert result.token_ids == wanted[:12]
    # Prefill leaves one row out (the pending token); each round commits the root and what it accepts.
    start = len(PROMPT_IDS) - 1
    assert lengths[:4] == [start, start + 1, start + 1 + 3, start + 1 + 3 + 5]
    assert drafter.tokens == [*PROMPT_IDS, *wanted[:12]]
    assert held(engine) == [*PROMPT_IDS, *wanted[:11]]


# A round that ends within a character. Byte tokens are in test_completion.py, a real tokenizer in test_smollm2_text.py.
@pytest.mark.parametrize("width", WIDTHS)
def test_pieces_never_end_within_a_cluster_of_characters_that_a_token_holds(engine_for: EngineFor, width: int) -> None:
    tokenizer = toy_tokenizer(extra=["e\u0301", "🏳", "\ufe0f", "\u200d🌈"])
    encoded = [tokenizer.convert_tokens_to_ids(piece) for piece in ["e\u0301", "🏳", "\ufe0f", "\u200d🌈", "z"]]
    size = VOCABULARY + 4
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, [*encoded, END], size)),
        tokenizer,
        vocabulary=size,
        drafter=ScriptedDrafter(chain_of([*encoded, END], width)),
    )
    pieces: list[str] = []
    result, _ = engine.generate(request(max_tokens=9), on_tokens=lambda text, _: pieces.append(text))
    assert result.text == "".join(pieces) == tokenizer.decode(encoded) == "e\u0301🏳\ufe0f\u200d🌈z"


# The thinking budget counts emitted tokens.
@pytest.mark.parametrize("width", [0, 1, 4, 8])
@pytest.mark.parametrize("budget", [0, 1, 7, 16])
@pytest.mark.parametrize("opened_by", ["prompt", "model"])
def test_the_forced_end_of_thinking_comes_after_exactly_the_budget(
    engine_for: EngineFor, opened_by: str, budget: int, width: int
) -> None:
    think, think_end = 1, 2
    letters = ids("abcdefghijklmnopqrstuvwxyz" * 3)
    prompt = [*PROMPT_IDS, think] if opened_by == "prompt" else PROMPT_IDS

    def logits_of(prefix: Sequence[int]) -> list[float]:
        answered = prefix[len(prompt) :]
        if opened_by == "model" and not answered:
            return one_hot(VOCABULARY, think)
        if think_end in answered:
            return one_hot(VOCABULARY, token_id("!") if answered[-1] == think_end else END)
        return one_hot(VOCABULARY, letters[len(answered)])

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        # Half of the guesses are wrong, and none knows of the budget.
        node = 0
        for place in range(emitted, emitted + width):
            if len(tree) >= limits.nodes or tree.depths[node] >= limits.depth:
                return
            tree.add(node, token_id("#"), 0.9)
            node = tree.add(node, letters[place], 0.8)

    engine = engine_for(ScriptedModel(logits_of), toy_tokenizer(thinks=True), drafter=ScriptedDrafter(script))
    text = PROMPT + ("<think>" if opened_by == "prompt" else "")
    result = answer(engine, prompt=text, max_tokens=60, thinking_budget=budget)
    thought = letters[:budget] if opened_by == "prompt" else [think, *letters[1 : budget + 1]]
    assert result.token_ids == [*thought, think_end, token_id("!")]
    assert result.reasoning == text_of(letters[:budget] if opened_by == "prompt" else letters[1 : budget + 1])
    assert result.text == "!"
    assert result.usage is not None
    assert result.usage.reasoning_tokens == len(thought) + 1


# Rounds without a draft.
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_round_without_a_draft_is_a_plain_step_and_the_next_starts_clean(
    engine_for: EngineFor, temperature: float
) -> None:
    wanted = ids("abcdefghijklmnopqrstuvwxyz")

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        if emitted % 7 > 2:
            add_chain(tree, [*wanted[emitted : emitted + 2], token_id("#")], limits)

    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=ScriptedDrafter(script))
    result, stats = engine.generate(request(max_tokens=24, temperature=temperature, top_k=1))
    assert result.token_ids == wanted[:24]
    assert stats.budgets[1] >= 3
    assert sum(count for nodes, count in stats.budgets.items() if nodes > 1) >= 3
    assert held(engine) == [*PROMPT_IDS, *wanted[:23]]


# Slower than plain, and roll-backs that copy (the latter in test_verifier.py).
def test_the_budget_falls_to_one_node_when_a_poor_drafter_does_not_pay(engine_for: EngineFor) -> None:
    wanted = ids("abcdefghijklmnopqrstuvwxyz" * 4)
    wrong = ScriptedDrafter(lambda _, tree, limits: add_chain(tree, ids("####"), limits) and None)
    # A pass over 5 nodes costs twice one over 1 node.
    curve = CostCurve((1, 5), (10.0, 20.0))
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)), drafter=wrong, curve=curve, max_tree_nodes=5
    )
    first = engine.generate(request(max_tokens=60))[1]
    second = engine.generate(request(max_tokens=60))[1]
    assert first.budgets[1] >= 10
    assert second.budgets == {1: 60}


def test_the_budget_rises_again_when_the_drafter_is_right(engine_for: EngineFor) -> None:
    wanted = ids("abcdefghijklmnopqrstuvwxyz" * 6)
    good = False

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        add_chain(tree, wanted[emitted : emitted + 4] if good else ids("####"), limits)

    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)),
        drafter=ScriptedDrafter(script),
        curve=CostCurve((1, 5), (10.0, 20.0)),
        max_tree_nodes=5,
    )
    engine.generate(request(max_tokens=60))
    good = True
    stats = engine.generate(request(max_tokens=120))[1]
    # Plain passes teach as well, so it notices without verifying a single draft.
    assert sum(count for nodes, count in stats.budgets.items() if nodes > 1) >= 10
    assert stats.tokens_per_pass is not None
    assert stats.tokens_per_pass > 1.5


def test_the_suffix_drafter_is_what_an_engine_speculates_with(engine_for: EngineFor) -> None:
    wanted = ids("abcdefgh" * 5)
    engine = engine_for(ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)))
    assert isinstance(engine.drafter, SuffixDrafter)
    result, stats = engine.generate(request(max_tokens=40))
    assert result.token_ids == wanted
    assert stats.drafter == "suffix"
    assert stats.passes < 20
