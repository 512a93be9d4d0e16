"""Incremental detokenisation: text as soon as it is certain, and never half a character."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
Decode = Callable[[Sequence[int]], str]

# A UTF-8 character has at most 4 bytes (RFC 3629), and a token at least one. So of waiting tokens the first 4 hold a
# byte that belongs to no character, or a character that is complete; and the last 3 hold all of an incomplete one,
# which is decoded alike when 3 more stand before it, whatever is cut out before those.
FIRST, LAST = 4, 6


class Detokenizer:
    """Turns tokens into text pieces whose concatenation is the decoding of all tokens.

    A piece is held back while the decoding ends in a replacement character, which is how an incomplete multi-byte
    character shows. When it still does so after FIRST + LAST tokens, all but that last character is final and is given
    out. `flush` gives out what is left at the end of the text. A token costs the decoding of a few, whatever came
    before it.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        # The waiting tokens, which have text to give, and some before them: a token's text can depend on its neighbour.
        self._window: list[int] = []
        self._waiting = 0
        self._given = 0
        """Leading characters of the window's decoding that were given out."""

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is incomplete."""
        self._window.append(token)
        self._waiting += 1
        text = self._decode(self._window)
        if len(text) > self._given and not text.endswith(REPLACEMENT):
            return self._give(text)
        if self._waiting > FIRST + LAST:
            return self._give_what_is_final(text)
        return ""

    def flush(self) -> str:
        """The rest, an incomplete character as replacement characters."""
        return self._give(self._decode(self._window)) if self._waiting else ""

    def _give(self, text: str) -> str:
        piece = text[self._given :]
        del self._window[: -self._waiting]
        self._waiting = 0
        self._given = len(self._decode(self._window))
        return piece

    def _give_what_is_final(self, text: str) -> str:
        """All but the last character; one of the tokens in the middle is then no longer needed."""
        final = max(self._given, len(text) - 1)
        piece = text[self._given : final]
        del self._window[-LAST - 1]
        self._waiting -= 1
        self._given = len(self._decode(self._window)) - (len(text) - final)
        return piece
