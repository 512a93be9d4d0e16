"""Incremental detokenisation with the real tokenizer of SmolLM2: pieces concatenate to the decoding of all ids."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from worker.engine.completion import Completion, EndRules
from worker.engine.detokenizer import Detokenizer

pytestmark = pytest.mark.model

TEXTS = {
    "chinese": "你好，世界。今天天气怎么样？",
    "japanese": "東京タワーは、とても高いです。",
    "korean": "안녕하세요, 만나서 반갑습니다",
    "emoji": "I ❤️ this 👍🏽 and that 🤷‍♀️!",
    "rainbow flag": "🏳️‍🌈 and 👨‍👩‍👧‍👦 and 🇨🇭🇯🇵",
    "combining": "e\u0301 n\u0303 Z\u0351\u036b\u0343 क्षि ที่",
    "crlf": "one\r\ntwo\r\n\r\n\tthree\n\n\nfour ",
    "code": "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": x**2}  # ¬∑\n",
    "spaces": "  leading, trailing  and\u00a0nbsp \u3000wide ",
    "arabic": "مرحبا بالعالم ٣٤٥",
    "a real replacement character": "a\ufffdb\ufffd\ufffdc",
    "special tokens": "<|im_start|>user\nhi<|im_end|>",
    "controls": "a\u0000b\u001b[0m\u200b",
}


def pieces_of(tokenizer: TokenizerWrapper, tokens: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer.decode)
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


@pytest.mark.parametrize("name", TEXTS)
def test_pieces_concatenate_to_the_text(smollm2_tokenizer: TokenizerWrapper, name: str) -> None:
    tokens = smollm2_tokenizer.encode(TEXTS[name])
    pieces = pieces_of(smollm2_tokenizer, tokens)
    assert "".join(pieces) == TEXTS[name]
    if "\ufffd" not in TEXTS[name]:
        assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_cut_anywhere_is_flushed_once(smollm2_tokenizer: TokenizerWrapper, name: str) -> None:
    tokens = smollm2_tokenizer.encode(TEXTS[name])
    for end in range(len(tokens) + 1):
        pieces = pieces_of(smollm2_tokenizer, tokens[:end])
        assert "".join(pieces) == smollm2_tokenizer.decode(tokens[:end])
        if "\ufffd" not in TEXTS[name]:
            assert all("\ufffd" not in piece for piece in pieces[:-1])


def byte_tokens(tokenizer: TokenizerWrapper, data: bytes) -> list[int]:
    """One token for each byte, after GPT-2's table of bytes as printable characters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [tokenizer.convert_tokens_to_ids(names[byte]) for byte in data]


def test_single_bytes_wait_for_their_character(smollm2_tokenizer: TokenizerWrapper) -> None:
    text = "a🏳️‍🌈é你"
    tokens = byte_tokens(smollm2_tokenizer, text.encode())
    pieces = pieces_of(smollm2_tokenizer, tokens)
    assert [piece for piece in pieces if piece] == list(text)
    # F0 9F came in one round and 8F B3 in the next: the flag's first character is complete with its fourth byte.
    assert pieces[:5] == ["a", "", "", "", "🏳"]


def test_invalid_bytes_become_replacement_characters_once(smollm2_tokenizer: TokenizerWrapper) -> None:
    data = b"a\x80b\xf0\x9fc\xe4\xbd"
    pieces = pieces_of(smollm2_tokenizer, byte_tokens(smollm2_tokenizer, data))
    assert "".join(pieces) == data.decode("utf-8", "replace")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(tokens=st.lists(st.integers(17, 49151), max_size=30))
def test_any_tokens_concatenate_to_their_decoding(smollm2_tokenizer: TokenizerWrapper, tokens: list[int]) -> None:
    assert "".join(pieces_of(smollm2_tokenizer, tokens)) == smollm2_tokenizer.decode(tokens)


def test_any_incomplete_tokens_concatenate_to_their_decoding(smollm2_tokenizer: TokenizerWrapper) -> None:
    # Tokens that begin or end within a character, all of them, in random order with a few others between.
    incomplete = [token for token in range(49152) if "\ufffd" in smollm2_tokenizer.decode([token])]
    assert len(incomplete) > 128
    rng = random.Random(1)
    for _ in range(300):
        tokens = rng.choices(incomplete, k=rng.randint(1, 80))
        tokens = [token if rng.random() < 0.97 else rng.randrange(17, 49152) for token in tokens]
        assert "".join(pieces_of(smollm2_tokenizer, tokens)) == smollm2_tokenizer.decode(tokens)


def test_random_bytes_concatenate_to_their_decoding(smollm2_tokenizer: TokenizerWrapper) -> None:
    rng = random.Random(0)
    whole = "".join(TEXTS.values()).encode()
    for _ in range(100):
        start = rng.randrange(len(whole))
        data = whole[start : start + rng.randint(1, 20)] + whole[-rng.randint(1, 40) :][:2]
        tokens = byte_tokens(smollm2_tokenizer, data)
        assert "".join(pieces_of(smollm2_tokenizer, tokens)) == smollm2_tokenizer.decode(tokens)


@pytest.mark.parametrize("stop", ["wo th", "three", "\n\n", "世界", "e", "🌈", "ee fo", "Count: one two three"])
def test_stops_cut_the_text_and_the_ids_alike(smollm2_tokenizer: TokenizerWrapper, stop: str) -> None:
    text = "Count: one two three four\n\n\n你好世界 🏳️‍🌈 end"
    tokens = smollm2_tokenizer.encode(text)
    expected = text.partition(stop)[0]
    completion = Completion(EndRules(1000, stops=(stop,)), smollm2_tokenizer.decode)
    reported = ""
    for token in tokens:
        ended = completion.push(token)
        reported += completion.new_text()
        assert expected.startswith(reported)
        if ended:
            break
    assert completion.text == reported == expected
    assert completion.finish_reason == "stop"
    assert completion.matched_stop == stop
    # The kept ids reach the cut and not a token further.
    kept = completion.tokens
    assert kept == tokens[: len(kept)]
    assert smollm2_tokenizer.decode(kept).startswith(expected.rstrip("\ufffd"))
    if kept:
        assert len(smollm2_tokenizer.decode(kept[:-1]).rstrip("\ufffd")) < len(expected)
