"""Session: the caches of target and drafter as they live from one request to the next.

The live cache keeps the tokens of the last request, and the next prompt goes on in place from what it shares with them;
snapshots of earlier prompts wait in a tree of prefixes. So a batch with one system prompt prefills it once, or twice if
the model's state can only be restored where it was kept: the second request shows how far the prompts are the same, and
leaves a snapshot there.
"""

import sys
from collections.abc import Callable, Sequence

import mlx.core as mx

from worker.engine.drafters.protocol import Drafter, NoDrafter
from worker.engine.session.backlog import Backlog
from worker.engine.session.layers import can_go_back
from worker.engine.session.prefix_tree import PrefixTree
from worker.engine.shared_prefix import shared_prefix
from worker.engine.verify.verifier import Cache, Verifier, evaluate

# A snapshot that saves fewer tokens of prefill than this is not worth its copy, nor the pass that ends at it.
MIN_SAVED_TOKENS = 32
# Row buffers grow in steps of so many tokens (mlx-lm's KVCache.step).
GROWTH = 256
# So many tokens may wait for the drafter: their hidden rows take memory.
MAX_WAITING = 256


class Session:
    """One live cache and the tokens in it, over a tree of snapshots.

    cache: the target's layers. drafter_layers: those of the drafter that is served. They hold the same tokens, but for
    the last ones, which wait until somebody needs the drafter: see `catch_up`.
    """

    def __init__(self, verifier: Verifier, tree: PrefixTree, reusable: int | None = None) -> None:
        """reusable: positions up to which content does not depend on how passes were split; None = all."""
        self._verifier, self._tree = verifier, tree
        self._reusable = sys.maxsize if reusable is None else reusable
        self._sound = self._reusable
        self._drafter: Drafter = NoDrafter()
        self.tokens: list[int] = []
        self.cache: Cache = verifier.new_cache()
        self.drafter_layers: Cache = []
        self._backlog = Backlog()

    def serve(self, drafter: Drafter) -> None:
        """Keep the layers of `drafter` beside the target's from now on; what was cached without them is let go."""
        if drafter is self._drafter:
            return
        layers = drafter.new_cache()
        self._drafter, self._verifier.taps = drafter, drafter.taps
        self._backlog = Backlog()
        if layers or self.drafter_layers:
            self.forget()

    def begin(self, prompt: Sequence[int], chunk: int, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Bring all of `prompt` but its last token into the cache; returns how many tokens were there already.

        The last token is the pending one, as in plain decoding. `should_stop` is asked between chunks of at most
        `chunk` tokens; a stopped prefill leaves a shorter cache that is still valid.
        """
        end = len(prompt) - 1
        limit = self._reuse_limit(end, chunk)
        live = min(limit, self._sound, shared_prefix(self.tokens, prompt))
        fork = max(live, min(limit, self._tree.known(prompt)))
        cached = self._reuse(prompt[:limit], live, room=len(prompt))
        self._sound = self._reusable if limit == end else limit
        stops = {limit, end} | ({fork} if self._is_worth_keeping(prompt[:fork]) else set())
        for stop in sorted(stops):
            if not self._prefill(prompt[:stop], chunk, should_stop):
                break
            if stop <= limit and self._is_worth_keeping(self.tokens):
                self.catch_up()
                self._tree.insert(self.tokens, self._layers)
        return cached

    def extend(self, tokens: Sequence[int], hidden: mx.array | None = None) -> None:
        """Note tokens that a pass has committed. hidden: their rows of the drafter's taps."""
        steps = len(self.tokens) // GROWTH
        self.tokens.extend(tokens)
        self._backlog.note(tokens, hidden)
        if len(self._backlog) > MAX_WAITING:
            self.catch_up()
        if len(self.tokens) // GROWTH > steps:
            # The buffers have grown. MLX would keep what they were before, on a GPU up to nearly all of its memory.
            mx.clear_cache()

    def catch_up(self) -> None:
        """Let the drafter absorb all that was committed since it last did, in one call. It has to before it drafts."""
        tokens, hidden = self._backlog.take()
        if tokens:
            self._drafter.absorb(tokens, hidden, self.drafter_layers)

    def forget(self) -> None:
        """Start from an empty cache, and without the snapshots of earlier prompts."""
        self._tree.clear()
        self.reset()

    def settle(self, length: int) -> None:
        """End a text of `length` tokens: what is held beyond it goes, where a cache can go back.

        Elsewhere it stays, which is right for the tokens that it holds; the next prompt decides.
        """
        self._go_back(length)
        # Tokens alone may wait for the next prompt, which most often drops them: that saves a draft model's pass.
        if self._backlog.has_rows:
            self.catch_up()

    def reset(self) -> None:
        """Start from an empty cache; the snapshots stay."""
        self.tokens = []
        self.cache = self._verifier.new_cache()
        self.drafter_layers = self._drafter.new_cache()
        self._backlog = Backlog()

    @property
    def _layers(self) -> Cache:
        return [*self.cache, *self.drafter_layers]

    def _reuse_limit(self, end: int, chunk: int) -> int:
        """How many of a prompt's `end` tokens may come from earlier requests.

        A pass that ends beyond `reusable` makes all of its content depend on where it ends. A cold prefill's passes end
        at multiples of `chunk`, so what is in the last such pass that is harmless, and before, can be reused.
        """
        return end if end <= self._reusable else self._reusable // chunk * chunk

    def _reuse(self, prompt: Sequence[int], live: int, room: int) -> int:
        """Have as many tokens of `prompt` in the cache as there are: of the `live` ones, or from the tree."""
        stored = self._tree.usable(prompt)
        if stored <= live and self._go_back(live):
            return live
        self.reset()
        if stored:
            restored = self._tree.restore(prompt[:stored], self._layers, room)
            self.cache, self.drafter_layers = restored[: len(self.cache)], restored[len(self.cache) :]
            self.tokens = list(prompt[:stored])
        return stored

    def _go_back(self, length: int) -> bool:
        """Drop what is held beyond `length` tokens, and of what waits as well; whether that was possible."""
        surplus = len(self.tokens) - length
        if surplus <= 0:
            return True
        absorbed = max(surplus - len(self._backlog), 0)
        if not can_go_back(self.cache) or (absorbed and not can_go_back(self.drafter_layers)):
            return False
        for layer in self.cache:
            layer.trim(surplus)
        for layer in self.drafter_layers if absorbed else ():
            layer.trim(absorbed)
        self._backlog.cut(len(self._backlog) - (surplus - absorbed))
        del self.tokens[length:]
        return True

    def _prefill(self, prompt: Sequence[int], chunk: int, should_stop: Callable[[], bool]) -> bool:
        """Append what the cache lacks of `prompt`; whether that was finished."""
        while len(self.tokens) < len(prompt):
            if should_stop():
                return False
            piece = prompt[len(self.tokens) : len(self.tokens) + chunk]
            self._verifier.prefill(piece, self.cache)
            self.extend(piece, self._verifier.hidden)
            self.catch_up()  # at once: a prompt has many hidden rows
            evaluate(self.drafter_layers)
            mx.clear_cache()
        return True

    def _is_worth_keeping(self, tokens: Sequence[int]) -> bool:
        return self._tree.budget > 0 and len(tokens) - self._tree.usable(tokens) >= MIN_SAVED_TOKENS
