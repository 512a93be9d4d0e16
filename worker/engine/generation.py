"""One generation: the loop that drafts, verifies, accepts and commits until the text ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from api.acceptance import AcceptanceRule
from worker.engine.acceptance import Walk, relaxed_walk, walk
from worker.engine.completion import Completion, Origin
from worker.engine.drafters.batch_memory import Outputs
from worker.engine.drafters.guide import Guide
from worker.engine.drafters.protocol import DraftContext, Drafter, DraftLimits
from worker.engine.draws import Draws
from worker.engine.interruption import Interruption
from worker.engine.logprobs import LogprobRecord
from worker.engine.reasoning import Reasoning
from worker.engine.sampling import History, Sampling, biased, drawn, likeliest, log_softmax
from worker.engine.session import Session
from worker.engine.speculation import Speculation
from worker.engine.tally import Tally
from worker.engine.tree import TokenTree
from worker.engine.verify.verifier import Verifier

OnTokens = Callable[[str, int], None]


class Generation:
    """The state of one completion in the engine. `run` once.

    Between two passes: the cache holds `session.tokens`, which are the prompt and the completion up to, and without,
    the pending token.
    """

    def __init__(
        self,
        *,
        verifier: Verifier,
        session: Session,
        drafter: Drafter,
        speculation: Speculation,
        sampling: Sampling,
        completion: Completion,
        tally: Tally,
        on_tokens: OnTokens,
        interruption: Interruption,
        logprobs: LogprobRecord | None = None,
        acceptance: AcceptanceRule = AcceptanceRule(),
        noise_guided: bool = True,
        outputs: Outputs | None = None,
    ) -> None:
        """outputs: earlier answers of the batch, for drafters to look at."""
        self.verifier, self.session, self.drafter = verifier, session, drafter
        self.speculation = speculation
        self.sampling, self.completion, self.tally = sampling, completion, tally
        self._on_tokens, self._interruption = on_tokens, interruption
        self._logprobs, self._acceptance, self._outputs = logprobs, acceptance, outputs
        self._noise_guided = noise_guided
        self._prompt: Sequence[int] = ()
        self._reasoning = Reasoning(None, None, ())
        self._pending = -1

    def run(self, prompt: Sequence[int], prefill_chunk: int) -> int:
        """Generate after `prompt`; returns how many prompt tokens the cache had already."""
        self._prompt, self._pending = prompt, prompt[-1]
        self._reasoning = Reasoning(self.sampling.think_start, self.sampling.think_end, prompt)
        self.session.serve(self.drafter)
        with self.tally.stopwatch.phase("prefill"):
            # A prefill that is interrupted leaves a shorter cache, and no token comes of it.
            cached = self.session.begin(prompt, prefill_chunk, lambda: self._interruption.ask() is not None)
        with self.tally.stopwatch.phase("draft"):
            self.speculation.start_request(Guide(self.sampling, noise=self._noise_guided).mode)
            self.drafter.prefill(prompt)
        while not self._finished():
            tree = self._draft()
            if len(tree) == 1 and self._can_run_ahead and not self.speculation.measuring:
                self._run_ahead()
            else:
                self._verify(tree)
        self.session.settle(len(prompt) + len(self.completion.tokens))
        return cached

    def _finished(self) -> bool:
        if not self.completion.finished and (reason := self._interruption.ask()):
            self.completion.interrupt(reason)
            if held_back := self.completion.new_text():
                self._on_tokens(held_back, len(self.completion.tokens))
        return self.completion.finished

    @property
    def _remaining(self) -> int:
        return self.completion.rules.max_tokens - len(self.completion.tokens)

    def _draft(self, *, beside_pass: bool = False) -> TokenTree:
        """The tree to verify next. beside_pass: the pass that will emit its first token is under way."""
        watch = self.tally.stopwatch
        draft = TokenTree(self._pending)
        limits = DraftLimits(self.speculation.max_nodes, self._remaining - 1)
        shape = self.verifier.shape_after(len(self.session.tokens), limits.nodes)
        possible = limits.nodes > 1 and limits.depth > 0 and shape != "plain"
        if not (possible and self.speculation.drafts(beside_pass=beside_pass)):
            return self.speculation.pass_over(draft)
        before = watch.spent_ms("draft")
        with watch.phase("draft"):
            if self.speculation.needs_state:
                self.session.catch_up()
            context = self._draft_context()
            self.drafter.draft(draft, context.asked.within(limits, context.asked.bits), context)
        with watch.phase("draft"):
            spent = watch.spent_ms("draft") - before
            return self.speculation.choose(draft, spent, as_chain=shape == "chain", beside_pass=beside_pass)

    def _draft_context(self) -> DraftContext:
        position = len(self.session.tokens)
        guide = Guide(self.sampling, self._history(), self._noise_guided)
        layers, asked = self.session.drafter_layers, self.speculation.asked
        return DraftContext(position, layers, self.session.cache, guide, self._outputs, asked)

    def _history(self, emitted: Sequence[int] = ()) -> History:
        return History(self._prompt, self.completion.tokens, emitted, self._reasoning)

    def _verify(self, tree: TokenTree) -> None:
        """One pass: verify `tree`, walk down it, commit the accepted path."""
        watch = self.tally.stopwatch
        with watch.phase("verify"):
            draws = self._draws(tree, self.verifier.forward(tree, self.session.cache))
        with watch.phase("sample"):
            accepted = self._walk(tree, draws)
        hidden = self.verifier.hidden
        with watch.phase("commit"):
            self.verifier.commit(tree, accepted.path, self.session.cache)
            committed = [tree.tokens[node] for node in accepted.path]
            self.session.extend(committed, None if hidden is None else hidden[mx.array(accepted.path)])
        self.tally.count_pass(tree, accepted=len(accepted.path) - 1)
        self._advance(accepted.tokens, accepted.origins)

    def _draws(self, tree: TokenTree, logits: mx.array) -> Draws:
        position = self._history().position
        positions = [position + depth for depth in tree.depths]
        top = None if self._logprobs is None else self._logprobs.top
        return Draws(self.sampling, logits, positions, self.verifier.kernels, top)

    def _walk(self, tree: TokenTree, draws: Draws) -> Walk:
        """The walk by the request's rule. Without a temperature there is no other token than the draw to take."""

        def draw(node: int, emitted: Sequence[int]) -> int:
            return draws.draw(node, self._history(emitted))

        def odds(node: int, emitted: Sequence[int], tokens: Sequence[int]) -> tuple[list[float], float]:
            return draws.odds(node, self._history(emitted), tokens)

        ends, theta = self.completion.rules.ends, self._acceptance.theta
        if theta is None or self.sampling.temperature == 0:
            walked = walk(tree, draw, ends)
        else:
            walked = relaxed_walk(tree, draw, ends, odds, theta)
        if self._logprobs is not None:
            for count, (node, token) in enumerate(zip(walked.path, walked.tokens, strict=True)):
                history = self._history(walked.tokens[:count])
                self._logprobs.add(token, draws.likelihood(node, history, token, self._logprobs.top))
        return walked

    @property
    def _can_run_ahead(self) -> bool:
        """Greedy text whose next token the device can choose by itself."""
        return self.sampling.temperature == 0 and not self.sampling.needs_history and self._logprobs is None

    def _run_ahead(self) -> None:
        """Plain greedy decoding for as long as no draft pays.

        Each pass is queued before the token before it is read, as plain decoding does, so the device never waits for
        the host. The price: when a draft starts to pay, or has to be timed, or the text ends, one plain pass is already
        under way.
        """
        watch = self.tally.stopwatch
        with watch.phase("verify"):
            current = self._queue(mx.array([self._pending]))
        while True:
            with watch.phase("verify"):
                following = self._queue(current.chosen) if self._remaining > 1 else None
            self._plain_token(current)
            if following is None:
                return
            if self._finished():
                # The pass under way has put the last token into the cache, be it text or the end of it.
                self.session.extend([self._pending], following.hidden)
                return
            if len(self._draft(beside_pass=True)) > 1 or self.speculation.measuring:
                self._plain_token(following)
                return
            current = following

    def _queue(self, token: mx.array) -> _Queued:
        logits = self.verifier.step(token, self.session.cache)
        chosen = likeliest(log_softmax(biased(logits, self.sampling)))
        mx.async_eval(chosen)  # type: ignore[no-untyped-call]
        return _Queued(chosen, self.verifier.hidden)

    def _plain_token(self, queued: _Queued) -> None:
        """Wait for a queued pass, and take its token."""
        with self.tally.stopwatch.phase("verify"):
            token = drawn(queued.read(), len(self._prompt) + len(self.completion.tokens))
        with self.tally.stopwatch.phase("commit"):
            self.session.extend([self._pending], queued.hidden)
        self.tally.count_pass(TokenTree(self._pending), accepted=0)
        self._advance([token], ["drawn"])

    def _advance(self, tokens: Sequence[int], origins: Sequence[Origin]) -> None:
        """Take the tokens of a pass, in order, and tell everyone who follows the text."""
        self.tally.tokens_arrived()
        with self.tally.stopwatch.phase("draft"):
            self.speculation.learn(tokens)
            self.drafter.commit(tokens)
        self._pending = tokens[-1]
        self._reasoning.push(tokens)
        for token, origin in zip(tokens, origins, strict=True):
            if self.completion.push(token, origin):
                break
        self.tally.tokens_taken()
        self._on_tokens(self.completion.new_text(), len(self.completion.tokens))


@dataclass(frozen=True)
class _Queued:
    """A plain pass under way: the token that it chooses, [1], and the row of the drafter's taps."""

    chosen: mx.array
    hidden: mx.array | None

    def read(self) -> int:
        """The chosen token; waits for the pass."""
        value = self.chosen.item()
        assert isinstance(value, int)
        return value
