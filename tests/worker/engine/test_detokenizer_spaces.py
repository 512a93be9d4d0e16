"""Tokenizers whose text of a token depends on its neighbour: a marker for the space, stripped at the start."""

import random
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models

from worker.engine.detokenizer import Detokenizer

PIECES = ["<unk>", "▁", "▁▁", "▁Hello", "Hello", "▁world", ",", "▁a", "b", "<0xE4>", "<0xBD>", "<0xA0>", "\n"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The decoder of Llama 2 and Mistral."""
    made = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(PIECES)}, merges=[], byte_fallback=True))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def pieces_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False))
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


def test_only_the_first_space_of_a_text_is_stripped(tokenizer: Tokenizer) -> None:
    tokens = [PIECES.index(piece) for piece in ("▁Hello", "▁world", ",", "▁", "▁a", "▁▁", "b")]
    assert pieces_of(tokenizer, tokens) == ["Hello", " world", ",", " ", " a", "  ", "b", ""]


def test_fallback_bytes_wait_for_their_character(tokenizer: Tokenizer) -> None:
    tokens = [PIECES.index(piece) for piece in ("▁a", "<0xE4>", "<0xBD>", "<0xA0>", "b")]
    assert pieces_of(tokenizer, tokens) == ["a", "", "", "你", "b", ""]


@pytest.mark.parametrize("seed", range(20))
def test_pieces_concatenate_to_the_decoding(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    whole = [PIECES.index(piece) for piece in ("<0xE4>", "<0xBD>", "<0xA0>")]
    tokens: list[int] = []
    for _ in range(40):
        tokens += whole if rng.random() < 0.2 else [rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 12])]
    assert "".join(pieces_of(tokenizer, tokens)) == tokenizer.decode(tokens)


def test_broken_bytes_lose_no_neighbour(tokenizer: Tokenizer) -> None:
    tokens = [PIECES.index(piece) for piece in ("▁a", "<0xE4>", "b", "▁world", "<0xBD>", "<0xBD>", "b", "<0xE4>")]
    assert "".join(pieces_of(tokenizer, tokens)) == tokenizer.decode(tokens) == "a\ufffdb world\ufffd\ufffdb\ufffd"
