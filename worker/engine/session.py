"""Session: the target's cache as it lives from one request to the next.

The cache keeps the tokens of the last request. The next prompt reuses what it shares with them from the start on, so a
batch with one system prompt prefills it once.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile

import mlx.core as mx

from worker.engine.verify.verifier import Cache, Verifier


class Session:
    """One cache and the tokens in it."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self.tokens: list[int] = []
        self.cache: Cache = verifier.new_cache()

    def begin(self, prompt: Sequence[int], chunk: int, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Bring all of `prompt` but its last token into the cache; returns how many tokens were there already.

        The last token is the pending one, as in plain decoding. `should_stop` is asked between chunks of `chunk`
        tokens; a stopped prefill leaves a shorter cache that is still valid.
        """
        cached = self._reuse(prompt)
        while len(self.tokens) < len(prompt) - 1 and not should_stop():
            start = len(self.tokens)
            piece = prompt[start : min(start + chunk, len(prompt) - 1)]
            self._verifier.prefill(piece, self.cache)
            self.tokens.extend(piece)
            mx.clear_cache()
        return cached

    def extend(self, tokens: Sequence[int]) -> None:
        """Note tokens that a pass has committed."""
        self.tokens.extend(tokens)

    def keep(self, length: int) -> None:
        """Drop committed tokens from the end until `length` are left."""
        surplus = len(self.tokens) - length
        if surplus <= 0:
            return
        if self._verifier.trim(self.cache, surplus):
            del self.tokens[length:]
        else:
            self.reset()

    def reset(self) -> None:
        """Start from an empty cache."""
        self.tokens = []
        self.cache = self._verifier.new_cache()

    def _reuse(self, prompt: Sequence[int]) -> int:
        pairs = zip(self.tokens, prompt[:-1], strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.keep(shared)
        return len(self.tokens)
