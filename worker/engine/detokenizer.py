"""Incremental detokenisation: text as soon as it is certain, and never half a character."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Turns tokens into text pieces whose concatenation is the decoding of all tokens.

    A piece is held back while the decoding ends in a replacement character, which is how an incomplete multi-byte
    character shows; `flush` gives out what is left at the end of the text.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        # Decoding starts at `_context`, some tokens before `_given`: a token's text can depend on its neighbour.
        self._context = 0
        self._given = 0

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is incomplete."""
        self._tokens.append(token)
        return self._take(final=False)

    def flush(self) -> str:
        """The rest, an incomplete character as replacement characters."""
        return self._take(final=True)

    def _take(self, final: bool) -> str:
        before = self._decode(self._tokens[self._context : self._given])
        text = self._decode(self._tokens[self._context :])
        if len(text) <= len(before) or (text.endswith(REPLACEMENT) and not final):
            return ""
        self._context, self._given = self._given, len(self._tokens)
        return text[len(before) :]
