"""Engine: one loaded target with its drafter, budget and session; `generate` answers one request."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import mlx.core as mx

from api.acceptance import LOSSLESS, AcceptanceRule
from api.identity import batch_of
from api.schemas import Choice, GenerationRequest, GenerationResult, JobStats
from worker.engine.admission import check_context, check_token_ids, end_rules
from worker.engine.budget import Budget
from worker.engine.choices import choice_of, choice_seed, usage_of
from worker.engine.clock_watch import ClockWatch
from worker.engine.completion import Completion, EndRules
from worker.engine.drafters.batch_memory import BatchMemory, Outputs
from worker.engine.drafters.choice import DrafterLoader
from worker.engine.drafters.mixture import members_of
from worker.engine.drafters.protocol import Drafter, NoDrafter
from worker.engine.generation import Generation, OnTokens
from worker.engine.interruption import Interruption
from worker.engine.kernel_set import STOCK, machine_kernels, verdicts_folder
from worker.engine.learned import Learned
from worker.engine.loading import Target, load_target
from worker.engine.logprobs import LogprobRecord
from worker.engine.machine import chip, keep_weights_resident
from worker.engine.memory import MemoryLimit, ModelMemory, prefix_cache_bytes, ran_out_of_memory
from worker.engine.models import ModelSpec
from worker.engine.notes import notes_of
from worker.engine.profile import PassTimer, Profile, Profiles, pair_key
from worker.engine.prompt import PromptError, prompt_tokens
from worker.engine.recipe import resolve, sampling_of, with_profile
from worker.engine.rehearsal import with_kernels, without_harm
from worker.engine.sampling import NoTokenLeft, Sampling
from worker.engine.selection import PLAIN, Adopt, Selected, Selection
from worker.engine.session import PrefixTree, Session
from worker.engine.speculation import Speculation
from worker.engine.tally import Tally
from worker.engine.verify.verifier import Verifier


@dataclass(frozen=True)
class EngineOptions:
    """data_dir: converted models, and what was measured and learned. max_tree_nodes 1 turns speculation off.

    drafter: see `drafters.choice`. noise_guided: whether drafters rank with the draw's own noise. adopt: when a drafter
    is used, see `selection`. default_max_tokens: cap of requests that name none. fixed_nodes: verify this many nodes
    whatever they cost. memory_limit_gb: GB (2^30 bytes) that model and drafters may take; None = what the device gives
    them. prefix_cache_bytes: for snapshots of prompts; 0 keeps none, None = a quarter of what the weights leave of the
    memory limit. batch_memory: whether drafters see the earlier answers of a batch. kernels: "auto" for those that run
    on this machine, "off" for MLX's own operations.
    """

    data_dir: Path
    drafter: str = "auto"
    noise_guided: bool = True
    adopt: Adopt = "matched"
    max_tree_nodes: int = 16
    prefill_chunk: int = 2048
    default_max_tokens: int = 1024
    fixed_nodes: int | None = None
    memory_limit_gb: float | None = None
    prefix_cache_bytes: int | None = None
    batch_memory: bool = True
    kernels: Literal["auto", "off"] = "auto"


@dataclass(frozen=True)
class Description:
    """What an engine tells about itself."""

    model: str
    chip: str
    drafter: str
    verification: str
    kernels: str


class Engine:
    """One target model in memory. It answers one request at a time, in the thread that loaded it."""

    def __init__(
        self,
        target: Target,
        profile: Profile,
        options: EngineOptions,
        notify: Callable[[str], None] = lambda _: None,
        selected: Selected | None = None,
    ) -> None:
        """selected: the drafter that is in use already; None = to be selected. Raises ModelError."""
        self.target, self.options, self._notify = target, options, notify
        self.profile = profile
        if target.products is not None:
            target.products.let(profile.rows)
        self.verifier = Verifier(target.model, profile.verification, profile.reuses_prefixes, target.kernels)
        budget = Budget(profile.curve, options.fixed_nodes, options.max_tree_nodes)
        speculates = self.verifier.mode != "plain" and budget.max_nodes > 1
        self._selected = (selected or self._select()) if speculates else PLAIN
        self.drafter: Drafter = self._selected.drafter
        members = members_of(self.drafter)
        on_device = [one.taps is not None or bool(one.new_cache()) for one in members]
        levels = [one.levels for one in members]
        self._learned = Learned(options.data_dir / "drafters", pair_key(target, self._selected.key), notify)
        self.speculation = Speculation(
            budget, self._learned.calibration, self._learned.costs, on_device=on_device, levels=levels
        )
        self._session = Session(self.verifier, PrefixTree(self._prefix_cache_bytes), self.verifier.reusable)
        self._memory = BatchMemory()
        self.clock: Callable[[], float] = time.monotonic
        self._watch = self._new_watch()

    @classmethod
    def load(
        cls,
        spec: ModelSpec,
        options: EngineOptions,
        notify: Callable[[str], None] = lambda _: None,
        *,
        fresh: bool = False,
    ) -> Engine:
        """Load `spec` and what was measured for it; measure it again if `fresh`.

        Raises ModelError; `notify` is told of long steps.
        """
        notify(f"loading {spec}")
        keep_weights_resident()
        memory = ModelMemory(MemoryLimit.of(options.memory_limit_gb))
        target = load_target(spec, options.data_dir / "models", memory=memory, notify=notify)
        if options.kernels == "auto":
            target = with_kernels(target, machine_kernels(verdicts_folder(options.data_dir), notify))

        def profile_of(target: Target) -> Profile:
            profiles = _profiles(target, options, notify)
            return profiles.measure() if fresh else profiles.find()

        target, profile = without_harm(target, profile_of(target), profile_of, notify)
        return cls(target, profile, options, notify)

    def with_options(self, options: EngineOptions) -> Engine:
        """An engine over the same loaded models; the session is its own.

        Raises ValueError for other kernels: those belong to the model in memory.
        """
        if options.kernels != self.options.kernels:
            raise ValueError("an engine over the same model has the same kernels; load the model again for others")
        same = (options.drafter, options.adopt) == (self.options.drafter, self.options.adopt)
        keeps = same and not isinstance(self.drafter, NoDrafter)
        selected = replace(self._selected, drafter=self.drafter) if keeps else None
        return Engine(self.target, self.profile, options, self._notify, selected)

    def upkeep(self) -> None:
        """What can wait until a request is answered: keep what it taught, and see whether the clock has moved."""
        if isinstance(self.drafter, NoDrafter):
            return
        self._learned.request_ended()
        if self.options.fixed_nodes or not self._watch.is_due:
            return
        if self._watch.has_moved(PassTimer(self.verifier, self.target.vocabulary)):
            profiles = _profiles(self.target, self.options, self._notify)
            self.profile = profiles.measure_curve(self.profile, self.verifier)
            self.speculation.budget = Budget(self.profile.curve, None, self.options.max_tree_nodes)
            self._watch = self._new_watch()

    def forget(self) -> None:
        """Have the next request start from an empty cache and know no earlier prompt or answer."""
        self._session.forget()
        self._memory.clear()

    def close(self) -> None:
        """Keep what was learned. The engine goes on working."""
        self._learned.save()

    @property
    def description(self) -> Description:
        return Description(
            model=str(self.target.spec),
            chip=chip(),
            drafter=self.drafter.name,
            verification=self.verifier.mode,
            kernels=self._kernels,
        )

    @property
    def _kernels(self) -> str:
        """The name of the kernels that passes of this engine run on."""
        used = [name for name in self.target.kernels.name.split() if self._uses(name.partition(":")[0])]
        return " ".join(used) or STOCK.name

    def _uses(self, kernel: str) -> bool:
        verifies_trees = self.verifier.mode == "tree"
        if kernel == "qmm":  # which may have been measured to gain nothing
            return bool(self.profile.rows)
        if kernel == "gated_delta_tree":  # plainly decoded tokens too
            return verifies_trees
        if kernel in ("tree_attention", "tree_convolution"):
            return verifies_trees and not isinstance(self.drafter, NoDrafter)
        return True

    @property
    def drafter_key(self) -> str:
        """What a verdict on this engine's drafter is kept by."""
        return self._selected.key

    @property
    def drafter_bytes(self) -> int:
        """Memory that this engine's drafter keeps for its weights."""
        return self._selected.weight_bytes

    def _select(self) -> Selected:
        options = self.options
        loader = DrafterLoader(self.target, options.data_dir, options.memory_limit_gb, self._notify)
        return Selection(loader, options.adopt, self._notify).select(options.drafter)

    def _new_watch(self) -> ClockWatch:
        return ClockWatch(self.profile.curve.cost(1), lambda: self.clock())

    @property
    def _prefix_cache_bytes(self) -> int:
        asked = self.options.prefix_cache_bytes
        return prefix_cache_bytes(self.options.memory_limit_gb) if asked is None else asked

    def generate(
        self,
        request: GenerationRequest,
        *,
        on_tokens: OnTokens | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> tuple[GenerationResult, JobStats]:
        """Answer `request`.

        on_tokens(text, tokens) gets each new piece of text and the number of completion tokens so far, of all choices.
        should_stop is asked once a pass; when it says so the running text ends there with finish reason "cancelled",
        and no other is begun. An error of the request itself is a result with `error`; any other exception leaves the
        engine ready for the next request. Raises MemoryError where memory runs out, whatever MLX calls it.
        """
        request = with_profile(request)
        tally = Tally(AcceptanceRule.parse(request.acceptance or LOSSLESS))
        interruption = Interruption(should_stop or (lambda: False), request.max_seconds, self.clock)
        try:
            prompt = prompt_tokens(request, self.target.tokenizer)
            check_context(prompt, self.target)
            check_token_ids(request, prompt, self.target)
        except PromptError as refused:
            return GenerationResult(request_id=request.request_id, error=refused.error), self._stats(tally)
        try:
            return self._answer(request, prompt, tally, on_tokens or (lambda *_: None), interruption)
        except NoTokenLeft as refused:
            # The pass whose row it is has not been committed.
            self._session.reset()
            return GenerationResult(request_id=request.request_id, error=refused.error), self._stats(tally)
        except BaseException as error:
            self._session.reset()
            if ran_out_of_memory(error):
                self._make_room(error)
                raise MemoryError("the engine ran out of memory") from error
            raise

    def _make_room(self, error: BaseException) -> None:
        """Let go of what the next request can do without. error: whose frames hold the arrays of the last pass."""
        traceback.clear_frames(error.__traceback__)
        self.forget()
        mx.clear_cache()

    def _answer(
        self,
        request: GenerationRequest,
        prompt: list[int],
        tally: Tally,
        on_tokens: OnTokens,
        interruption: Interruption,
    ) -> tuple[GenerationResult, JobStats]:
        """One choice after the other; after the first, the prompt is in the cache, or a snapshot of it is kept."""
        mx.reset_peak_memory()
        window = self.target.context - len(prompt)
        rules = end_rules(request, window, self.target, self.options.default_max_tokens)
        resolved = resolve(request, self.target.recipe)
        sampling = sampling_of(request, resolved, rules.end_tokens | rules.stop_tokens, self.target.tokenizer)
        outputs = self._outputs_of(request)
        choices: list[Choice] = []
        cached: list[int] = []
        while len(choices) < request.n and interruption.reason is None:
            own = replace(sampling, seed=choice_seed(sampling.seed, len(choices)))
            record = LogprobRecord(request.top_logprobs, self.target.tokenizer.decode) if request.logprobs else None
            generation = self._generation(own, rules, tally, on_tokens, interruption, record, outputs)
            cached.append(generation.run(prompt, self.options.prefill_chunk))
            if outputs is not None and generation.completion.finish_reason != "cancelled":
                outputs.add(prompt, generation.completion.tokens)
            choices.append(choice_of(generation.completion, record, prompt, own, self.target.tokenizer))
        result = GenerationResult(
            **dict(choices[0]),
            request_id=request.request_id,
            further_choices=choices[1:],
            usage=usage_of(choices, len(prompt), cached[0], sampling.think_end),
            sampling=resolved,
            notes=notes_of(request, choices, sampling, window, rules.max_tokens),
        )
        return result, self._stats(tally)

    def _generation(
        self,
        sampling: Sampling,
        rules: EndRules,
        tally: Tally,
        on_tokens: OnTokens,
        interruption: Interruption,
        record: LogprobRecord | None,
        outputs: Outputs | None,
    ) -> Generation:
        before = tally.completion_tokens
        completion = Completion(rules, self.target.tokenizer.decode)
        tally.completions.append(completion)
        return Generation(
            verifier=self.verifier,
            session=self._session,
            drafter=self.drafter,
            speculation=self.speculation,
            sampling=sampling,
            completion=completion,
            tally=tally,
            on_tokens=lambda text, tokens: on_tokens(text, before + tokens),
            interruption=interruption,
            logprobs=record,
            acceptance=tally.acceptance,
            noise_guided=self.options.noise_guided,
            outputs=outputs,
        )

    def _outputs_of(self, request: GenerationRequest) -> Outputs | None:
        """Earlier answers of the request's batch; None where nobody would look at them."""
        batch = batch_of(request.request_id)
        if not batch or not self.options.batch_memory or isinstance(self.drafter, NoDrafter):
            return None
        return self._memory.of(batch)

    def _stats(self, tally: Tally) -> JobStats:
        about = self.description
        return tally.stats(
            peak_memory_bytes=mx.get_peak_memory(),
            model=about.model,
            drafter=about.drafter,
            verification=about.verification,
            chip=about.chip,
            kernels=about.kernels,
        )


def _profiles(target: Target, options: EngineOptions, notify: Callable[[str], None]) -> Profiles:
    return Profiles(options.data_dir / "profiles", target, options.max_tree_nodes, notify)
