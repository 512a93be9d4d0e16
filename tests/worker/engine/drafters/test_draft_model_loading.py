"""Which models may draft for a target: the ones whose ids mean the same, and the errors of the others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from toy_tokenizer import VOCABULARY_TOKENS, toy_tokenizer
from transformers import PreTrainedTokenizerFast

from api.errors import ExitCode, ModelError
from bench.families import configuration, tiny_model
from worker.engine import verdicts
from worker.engine.drafters.draft_model import load_draft_model
from worker.engine.drafters.draft_model.vocabulary import check_same_vocabulary, known_ids
from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.loading import Target, load_target
from worker.engine.memory import MemoryLimit, ModelMemory
from worker.engine.models import ModelSpec
from worker.engine.tree import TokenTree


def write_model(
    directory: Path, family: str = "llama", tokenizer: TokenizerWrapper | None = None, **changes: Any
) -> Path:
    """A tiny model as an MLX directory."""
    directory.mkdir()
    tiny_model(family, **changes).save_weights(str(directory / "model.safetensors"))
    changes.pop("seed", None)
    (directory / "config.json").write_text(json.dumps(configuration(family, **changes)))
    (tokenizer or toy_tokenizer())._tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return load(write_model(tmp_path / "target"))


def load(directory: Path) -> Target:
    return load_target(ModelSpec(str(directory)), directory.parent)


def message(check: Callable[[], object]) -> str:
    with pytest.raises(ModelError) as caught:
        check()
    assert caught.value.exit_code == ExitCode.MODEL_UNUSABLE
    text = str(caught.value)
    assert "\n" not in text
    return text


def wrapped(inner: Tokenizer, end: str = VOCABULARY_TOKENS[0]) -> TokenizerWrapper:
    inner.decoder = decoders.Fuse()
    return TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end))


def tokenizer_of(vocabulary: dict[str, int], special: tuple[str, ...] = ("<eos>",)) -> TokenizerWrapper:
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return wrapped(inner)


IDS = {token: number for number, token in enumerate(["<eos>", "<pad>", "a", "b", "c"])}


def refused(target: TokenizerWrapper, draft: TokenizerWrapper) -> str:
    text = message(lambda: check_same_vocabulary(target, draft, "small"))
    start, end = "draft model small does not speak the target's vocabulary: ", "; take a smaller model of the target's"
    assert text.startswith(start)
    return text.removeprefix(start).partition(end)[0]


def test_the_same_tokenizer_passes() -> None:
    check_same_vocabulary(toy_tokenizer(), toy_tokenizer(), "small")
    check_same_vocabulary(tokenizer_of(IDS), tokenizer_of(IDS), "small")
    assert known_ids(tokenizer_of(IDS)) == 5


def test_the_first_id_with_another_meaning_is_named() -> None:
    swapped = {**IDS, "a": 3, "b": 2}
    assert refused(tokenizer_of(IDS), tokenizer_of(swapped)) == (
        "token 'a' is id 2 in the target and id 3 in the draft model"
    )


def test_a_token_that_one_of_the_two_lacks_is_named() -> None:
    fewer = {token: number for token, number in IDS.items() if token != "c"}
    assert refused(tokenizer_of(IDS), tokenizer_of(fewer)) == (
        "token 'c' is id 4 in the target and missing in the draft model"
    )
    assert refused(tokenizer_of(fewer), tokenizer_of(IDS)) == (
        "token 'c' is id 4 in the draft model and missing in the target"
    )


def test_a_token_that_is_special_in_one_of_the_two_is_named() -> None:
    both = tokenizer_of(IDS, special=("<eos>", "<pad>"))
    assert refused(both, tokenizer_of(IDS)) == (
        "token '<pad>' (id 1) is special in the target and not in the draft model"
    )
    assert refused(tokenizer_of(IDS), both) == (
        "token '<pad>' (id 1) is special in the draft model and not in the target"
    )


def test_which_tokens_end_a_text_may_differ() -> None:
    check_same_vocabulary(toy_tokenizer(), toy_tokenizer(end_tokens=[5]), "small")


def test_the_same_ids_for_other_pieces_of_text_are_named() -> None:
    ids = {**{chr(code): code for code in range(0x21, 0x7F)}, "<eos>": 0, "qu": 1, " ": 2}
    merging = Tokenizer(models.BPE(vocab=ids, merges=[("q", "u")]))
    apart = Tokenizer(models.BPE(vocab=ids, merges=[("q", "u")]))
    apart.pre_tokenizer = pre_tokenizers.Split("q", "isolated")
    difference = refused(wrapped(merging), wrapped(apart))
    assert difference.startswith(
        '"The quick brown fox doesn\'t jump over 1234567.89 lazy dogs." is [84, 104, 101, 2, 1, '
    )
    assert " and [84, 104, 101, 2, 113, 117, " in difference


def test_a_draft_model_of_the_same_vocabulary_drafts(target: Target, tmp_path: Path) -> None:
    # More embeddings than the target, as of a family that pads them: only what both have is drafted.
    directory = write_model(tmp_path / "draft", vocab_size=128, seed=4)
    told: list[str] = []
    drafter = load_draft_model(ModelSpec(str(directory)), target, tmp_path, notify=told.append)
    assert told == []
    assert drafter.taps is None
    assert drafter._vocabulary == 97
    assert drafter._context == 4096
    layers = drafter.new_cache()
    drafter.absorb([5, 6, 7], None, layers)
    tree = TokenTree(8)
    drafter.draft(tree, DraftLimits(8, 3), DraftContext(3, layers))
    assert layers[0].offset == 3
    assert max(tree.tokens) < 97


def test_a_draft_model_of_another_vocabulary_is_refused(target: Target, tmp_path: Path) -> None:
    directory = write_model(tmp_path / "draft", tokenizer=toy_tokenizer(thinks=True), seed=4)
    text = message(lambda: load_draft_model(ModelSpec(str(directory)), target, tmp_path))
    assert "token '<a>' is id 1 in the target and missing in the draft model" in text
    assert str(directory) in text


def test_a_draft_model_that_cannot_be_verified_by_trees_drafts_chains(target: Target, tmp_path: Path) -> None:
    directory = write_model(tmp_path / "draft", "deepseek_v41", seed=4)
    told: list[str] = []
    drafter = load_draft_model(ModelSpec(str(directory)), target, tmp_path, notify=told.append)
    assert drafter._verifier.mode == "chain"
    assert [line.partition(":")[0] for line in told] == [f"draft model {directory} drafts chains, not trees"]


def test_two_models_that_do_not_fit_together_are_refused_before_the_second_is_read(
    target: Target, tmp_path: Path
) -> None:
    directory = write_model(tmp_path / "draft", seed=4)
    weights = sum(array.nbytes for _, array in tree_flatten(target.model.parameters()))
    # Room for either of them, and not for both.
    memory = ModelMemory(MemoryLimit(int(256 * 2**20 + 1.5 * weights), "the test gives it"))
    memory.count(str(target.spec), target.model)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    text = message(lambda: load_draft_model(ModelSpec(str(directory)), target, tmp_path, memory=memory))
    assert mx.get_peak_memory() - before < weights / 4
    assert text.startswith(f"model {target.spec} with drafter {directory} needs about ")


def test_how_a_draft_model_is_run_is_checked_once(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_model(tmp_path / "draft", "deepseek_v41", seed=4)
    told: list[str] = []
    load_draft_model(ModelSpec(str(directory)), target, tmp_path, notify=told.append)
    (file,) = (tmp_path / "verdicts").iterdir()
    assert json.loads(file.read_text())["mode"] == "chain"
    monkeypatch.setattr(verdicts, "decide_mode", lambda *_: pytest.fail("it was checked again"))
    again = load_draft_model(ModelSpec(str(directory)), target, tmp_path, notify=told.append)
    assert again._verifier.mode == "chain"
    # Chains are slower, so a user is told at every start, with the reason.
    assert told[0] == told[1]
    assert "tree verification" in told[0]
