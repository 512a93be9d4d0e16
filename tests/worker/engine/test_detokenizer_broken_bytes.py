"""Text that is no UTF-8: it is given out in time, at a constant cost per token, and nothing of it is lost."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from worker.engine.detokenizer import FIRST, LAST, Detokenizer

# The alphabet of GPT-2's byte-level tokenizers: each byte as a printable character.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
NAMES = {byte: chr(byte) for byte in PRINTABLE} | {byte: chr(256 + index) for index, byte in enumerate(OTHERS)}

# Bytes of every kind: ASCII, leading bytes of 2, 3 and 4, continuations, and two that are never valid.
BYTES = [0x41, 0xC3, 0xE4, 0xEF, 0xF0, 0x80, 0x8F, 0x9F, 0xA0, 0xBD, 0xBF, 0xFF, 0xC0]
WHOLE = ["你".encode(), "🏳".encode(), "é".encode(), "\ufffd".encode()]
SPANNING = [b"\xa0\xe4", b"\xbd\xa0\xe4", b"A\xf0\x9f", b"\x8f\xb3\xf0", b"\xa0B", b"\x80\x80", b"\xe4\xbd\xa0\xe4\xbd"]
TOKENS = [*(bytes([byte]) for byte in BYTES), *WHOLE, *SPANNING]


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """A token for each of TOKENS, decoded as SmolLM2, Llama 3 and Qwen are."""
    vocabulary = {"".join(NAMES[byte] for byte in token): number for number, token in enumerate(TOKENS)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.decoder = decoders.ByteLevel()
    return made


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """Single bytes and a letter, decoded as Llama 2 and Mistral are."""
    pieces = [*(f"<0x{byte:02X}>" for byte in BYTES), "a"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return made


class CountedDecoding:
    """Counts the tokens that it decodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.most = self.total = 0

    def __call__(self, ids: Sequence[int]) -> str:
        self.most = max(self.most, len(ids))
        self.total += len(ids)
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)  # type: ignore[no-any-return]


def pieces_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    decode = CountedDecoding(tokenizer)
    detokenizer = Detokenizer(decode)
    pieces = [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]
    assert decode.most <= 2 * (FIRST + LAST + 1)
    assert decode.total <= 4 * (FIRST + LAST + 1) * (len(tokens) + 1)
    return pieces


def ids_of(*tokens: bytes) -> list[int]:
    return [TOKENS.index(token) for token in tokens]


@settings(max_examples=500, deadline=None, derandomize=True)
@given(tokens=st.lists(st.integers(0, len(TOKENS) - 1), max_size=12))
def test_pieces_of_any_bytes_concatenate_to_the_decoding(byte_level: Tokenizer, tokens: list[int]) -> None:
    data = b"".join(TOKENS[token] for token in tokens)
    assert "".join(pieces_of(byte_level, tokens)) == data.decode("utf-8", "replace")


@pytest.mark.parametrize(
    "alphabet",
    [
        TOKENS,
        [*SPANNING, b"\xe4", b"\xf0", b"\x9f", b"\xbd", b"\xa0"],
        [b"\xf0", b"\xe4", b"\x9f", b"\x80", b"\x80\x80"],
    ],
    ids=["all", "spanning", "broken"],
)
def test_pieces_of_long_texts_concatenate_to_the_decoding(byte_level: Tokenizer, alphabet: list[bytes]) -> None:
    rng = random.Random(0)
    for _ in range(600):
        tokens = rng.choices(alphabet, k=rng.randint(10, 60))
        assert "".join(pieces_of(byte_level, ids_of(*tokens))) == b"".join(tokens).decode("utf-8", "replace")


@pytest.mark.parametrize("byte", [b"\x80", b"\xff", b"\xf0", b"\xe4"])
def test_a_text_of_invalid_bytes_comes_as_it_is_written(byte_level: Tokenizer, byte: bytes) -> None:
    pieces = pieces_of(byte_level, ids_of(byte) * 300)
    assert "".join(pieces) == "\ufffd" * 300
    assert pieces[: FIRST + LAST] == [""] * (FIRST + LAST)
    # From then on a character a token.
    assert pieces[FIRST + LAST + 1 : 300] == ["\ufffd"] * (299 - FIRST - LAST)


def test_characters_that_no_token_ends_with_come_as_they_are_written(byte_level: Tokenizer) -> None:
    pieces = pieces_of(byte_level, [*ids_of(b"\xe4"), *ids_of(b"\xbd\xa0\xe4") * 100, *ids_of(b"\xbd", b"\xa0")])
    assert "".join(pieces) == "你" * 101
    assert pieces[FIRST + LAST + 1 : 101] == ["你"] * (100 - FIRST - LAST)


@pytest.mark.parametrize("garbage", range(40))
def test_a_character_after_invalid_bytes_is_whole(byte_level: Tokenizer, garbage: int) -> None:
    for character in ("é", "你", "🏳"):
        tokens = [*ids_of(b"\x80") * garbage, *ids_of(*(bytes([byte]) for byte in character.encode() if byte in BYTES))]
        data = b"".join(TOKENS[token] for token in tokens)
        assert "".join(pieces_of(byte_level, tokens)) == data.decode("utf-8", "replace")


def test_a_run_of_fallback_bytes_is_decoded_as_a_whole(byte_fallback: Tokenizer) -> None:
    # This decoder replaces a whole run, and so takes back characters that were complete; runs here begin invalid.
    letter, never = len(BYTES), BYTES.index(0xFF)
    rng = random.Random(0)
    for _ in range(600):
        runs = [rng.choices(range(letter), k=rng.randint(0, 40)) for _ in range(3)]
        tokens = [token for run in runs for token in (never, *run, letter)]
        assert "".join(pieces_of(byte_fallback, tokens)) == byte_fallback.decode(tokens, skip_special_tokens=False)
