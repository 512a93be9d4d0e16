"""Engine: one loaded target with its drafter, budget and session; `generate` answers one request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from api.schemas import GenerationRequest, GenerationResult, JobStats, ResolvedValue, Usage
from worker.engine.budget import Budget
from worker.engine.calibration import Calibration
from worker.engine.completion import Completion, EndRules
from worker.engine.drafters.protocol import Drafter, NoDrafter
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.generation import Generation, OnTokens
from worker.engine.loading import Target, load_target
from worker.engine.logprobs import LogprobRecord
from worker.engine.machine import chip, keep_weights_resident
from worker.engine.models import ModelSpec
from worker.engine.profile import KERNELS, Profile, profile_of
from worker.engine.prompt import PromptError, prompt_tokens, split_reasoning
from worker.engine.recipe import resolve, sampling_of, with_profile
from worker.engine.sampling import Sampling, reasoning_tokens
from worker.engine.session import Session
from worker.engine.tally import Tally
from worker.engine.verify.verifier import Verifier


@dataclass(frozen=True)
class EngineOptions:
    """data_dir: converted models and measured profiles. max_tree_nodes 1 turns speculation off.

    default_max_tokens: cap of requests that name none. fixed_nodes: verify this many nodes whatever they cost.
    memory_limit_gb: GB (2^30 bytes) that the model may take; None = what the device gives it.
    """

    data_dir: Path
    max_tree_nodes: int = 16
    prefill_chunk: int = 2048
    default_max_tokens: int = 1024
    fixed_nodes: int | None = None
    memory_limit_gb: float | None = None


@dataclass(frozen=True)
class Description:
    """What an engine tells about itself."""

    model: str
    chip: str
    drafter: str
    verification: str


class Engine:
    """One target model in memory. It answers one request at a time, in the thread that loaded it."""

    def __init__(self, target: Target, profile: Profile, options: EngineOptions) -> None:
        self.target, self.options = target, options
        self.verifier = Verifier(target.model, mode=profile.verification)
        self.curve = profile.curve
        self.budget = Budget(profile.curve, options.fixed_nodes)
        speculates = self.verifier.mode == "tree" and self.budget.max_nodes > 1
        self.drafter: Drafter = SuffixDrafter() if speculates else NoDrafter()
        self._calibration = Calibration()
        self._session = Session(self.verifier)

    @classmethod
    def load(cls, spec: ModelSpec, options: EngineOptions, notify: Callable[[str], None] = lambda _: None) -> Engine:
        """Load `spec` and what was measured for it. Raises ModelError; `notify` is told of long steps."""
        notify(f"loading {spec}")
        keep_weights_resident()
        target = load_target(spec, options.data_dir / "models", memory_limit_gb=options.memory_limit_gb, notify=notify)
        profile = profile_of(target, options.data_dir / "profiles", options.max_tree_nodes, notify)
        return cls(target, profile, options)

    def with_options(self, options: EngineOptions) -> Engine:
        """An engine over the same loaded model; the session is its own."""
        return Engine(self.target, Profile(self.verifier.mode, self.curve), options)

    @property
    def description(self) -> Description:
        return Description(str(self.target.spec), chip(), self.drafter.name, self.verifier.mode)

    def generate(
        self,
        request: GenerationRequest,
        *,
        on_tokens: OnTokens | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> tuple[GenerationResult, JobStats]:
        """Answer `request`.

        on_tokens(text, tokens) gets each new piece of text and the number of completion tokens so far. should_stop is
        asked once a pass; when it says so the text ends there with finish reason "cancelled". An error of the request
        itself is a result with `error`; any other exception leaves the engine ready for the next request.
        """
        request = with_profile(request)
        tally = Tally()
        try:
            prompt = prompt_tokens(request, self.target.tokenizer)
            self._check_context(prompt)
            self._check_token_ids(request)
        except PromptError as refused:
            return GenerationResult(request_id=request.request_id, error=refused.error), self._stats(tally, [])
        try:
            return self._answer(request, prompt, tally, on_tokens or (lambda *_: None), should_stop or (lambda: False))
        except BaseException:
            self._session.reset()
            raise

    def _answer(
        self,
        request: GenerationRequest,
        prompt: list[int],
        tally: Tally,
        on_tokens: OnTokens,
        should_stop: Callable[[], bool],
    ) -> tuple[GenerationResult, JobStats]:
        mx.reset_peak_memory()
        resolved = resolve(request, self.target.recipe)
        rules, notes = self._end_rules(request, len(prompt))
        sampling = sampling_of(request, resolved, rules.end_tokens | rules.stop_tokens, self.target.tokenizer)
        if request.thinking_budget is not None and sampling.thinking_budget is None:
            notes.append("thinking_budget has no effect: this model does not mark its thinking by single tokens")
        completion = Completion(rules, self.target.tokenizer.decode)
        record = LogprobRecord(request.top_logprobs, self.target.tokenizer.decode) if request.logprobs else None
        generation = Generation(
            verifier=self.verifier,
            session=self._session,
            drafter=self.drafter,
            budget=self.budget,
            calibration=self._calibration,
            sampling=sampling,
            completion=completion,
            tally=tally,
            on_tokens=on_tokens,
            should_stop=should_stop,
            logprobs=record,
        )
        cached = generation.run(prompt, self.options.prefill_chunk)
        if request.max_tokens is None and completion.finish_reason == "length":
            window = self.target.context - len(prompt)
            what = "context window" if rules.max_tokens == window else f"default cap of {rules.max_tokens} tokens"
            notes.append(f"no max_tokens was given; the answer ends with the {what}")
        result = self._result(request, prompt, completion, sampling, resolved, cached, notes)
        if record is not None:
            result.logprobs = record.of(completion.tokens)
        return result, self._stats(tally, completion.tokens)

    def _check_context(self, prompt: list[int]) -> None:
        if len(prompt) >= self.target.context:
            raise PromptError(
                "context_length_exceeded",
                f"the prompt has {len(prompt)} tokens, and the context window of {self.target.spec} holds "
                f"{self.target.context} with at least one token of the answer",
            )

    def _check_token_ids(self, request: GenerationRequest) -> None:
        """MLX checks no bounds: an id past the vocabulary would be written past the end of the logits."""
        named = {"logit_bias": list(request.logit_bias or {}), "stop_token_ids": request.stop_token_ids}
        for name, ids in named.items():
            for token in ids:
                if not 0 <= token < self.target.vocabulary:
                    raise PromptError(
                        "invalid_token_id",
                        f"{name} names token {token}, and the vocabulary of {self.target.spec} has the ids 0 to "
                        f"{self.target.vocabulary - 1}",
                    )

    def _end_rules(self, request: GenerationRequest, prompt_length: int) -> tuple[EndRules, list[str]]:
        window = self.target.context - prompt_length
        asked = request.max_tokens or self.options.default_max_tokens
        notes = []
        if request.max_tokens and request.max_tokens > window:
            notes.append(f"max_tokens {request.max_tokens} clamped to {window}, the rest of the context window")
        rules = EndRules(
            max_tokens=min(asked, window),
            end_tokens=frozenset() if request.ignore_eos else frozenset(self.target.tokenizer.eos_token_ids),
            stop_tokens=frozenset(request.stop_token_ids),
            stops=tuple(request.stop),
        )
        return rules, notes

    def _result(
        self,
        request: GenerationRequest,
        prompt: list[int],
        completion: Completion,
        sampling: Sampling,
        resolved: dict[str, ResolvedValue],
        cached: int,
        notes: list[str],
    ) -> GenerationResult:
        tokenizer = self.target.tokenizer
        opened = sampling.think_start is not None and reasoning_tokens([], prompt, sampling) is not None
        reasoning, text = split_reasoning(completion.text, opened, tokenizer.think_start, tokenizer.think_end)
        thought = _reasoning_length(completion.tokens, sampling.think_end) if reasoning is not None else 0
        return GenerationResult(
            request_id=request.request_id,
            text=text,
            reasoning=reasoning,
            finish_reason=completion.finish_reason,
            matched_stop=completion.matched_stop,
            token_ids=list(completion.tokens),
            usage=Usage(
                prompt_tokens=len(prompt),
                completion_tokens=len(completion.tokens),
                cached_prompt_tokens=cached,
                reasoning_tokens=thought,
            ),
            sampling=resolved,
            notes=notes,
        )

    def _stats(self, tally: Tally, completion: list[int]) -> JobStats:
        about = self.description
        return tally.stats(
            completion,
            peak_memory_bytes=mx.get_peak_memory(),
            model=about.model,
            drafter=about.drafter,
            verification=about.verification,
            chip=about.chip,
            kernels=KERNELS,
        )


def _reasoning_length(tokens: list[int], think_end: int | None) -> int:
    return tokens.index(think_end) + 1 if think_end in tokens else len(tokens)
