"""The shapes that cross a process border. Nothing else does.

`RequestBody` is what a user asks for, `GenerationRequest` is that with its identity, as it travels through Redis.
`GenerationResult` and `JobStats` come back in a `RequestEvent` on the results stream.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, field_validator, model_validator

from api.acceptance import AcceptanceRule
from api.choices import MAX_CHOICES
from api.choices import PRIORITIES as PRIORITIES
from api.choices import Priority as Priority
from api.states import BatchState, RequestState

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high"]
FinishReason = Literal["stop", "length", "cancelled", "time_limit", "repetition"]

MAX_STOPS = 64
MAX_TOP_LOGPROBS = 20

# OpenAI fields that cannot change the text here: accepted and kept, so that a file written for OpenAI runs unchanged.
PASSTHROUGH_FIELDS = frozenset(
    {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)


class Contract(BaseModel):
    """Base of every shape: an unknown field is an error that names the field, and values are not coerced."""

    # A log-probability can be -inf, which plain JSON cannot say.
    model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")


class FunctionCall(Contract):
    name: str
    arguments: dict[str, JsonValue]

    @field_validator("arguments", mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        """OpenAI sends arguments as a JSON string; chat templates take the object."""
        from pydantic_core import from_json

        if not isinstance(value, str):
            return value
        try:
            return from_json(value)
        except ValueError as error:
            raise ValueError(f"the string is not JSON: {error}") from error


class ToolCall(Contract):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


def _join_parts(content: object) -> object:
    """Join OpenAI's text parts; name the part that a text model cannot take."""
    if not isinstance(content, list):
        return content
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"part {number} is {kind!r}, which is not supported: text parts only")
        texts.append(part["text"])
    return "".join(texts)


class ChatMessage(Contract):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_join_parts)] = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _has_content(self) -> ChatMessage:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError(f"content of the {self.role} message is missing or null")
        return self


class SamplingParams(Contract):
    """How the next token is chosen. None = not asked for: the model's own default or the engine's decides."""

    model_config = ConfigDict(allow_inf_nan=False)

    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    penalty_context_size: int | None = Field(None, gt=0)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[int, float] | None = None

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _integer_keys(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        try:
            return {int(token): bias for token, bias in value.items()}
        except (TypeError, ValueError) as error:
            raise ValueError("a key is not a token id; token ids map to numbers") from error


class Profile(SamplingParams):
    """Values that a producer's configuration gives a name: they stand where a request says nothing."""

    thinking: bool | None = None
    reasoning_effort: ReasoningEffort | None = None


class NamedProfile(Profile):
    """A profile as it travels with a request, so that every worker goes by the producer's values."""

    name: str


class ResponseFormat(Contract):
    type: Literal["text"]


class RequestBody(SamplingParams):
    """One generation as a user asks for it: chat messages or a raw prompt, and how to answer.

    max_tokens: completion tokens at most; None = the rest of the context window, up to the default cap of the settings.
    stop: strings; the text ends before the earliest match. stop_token_ids: ids that end the text like the end token.
    seed: of the sampling noise; None = derived from the request id.
    n: answers to the one prompt; answer i > 0 has the seed sha256("<seed>:<i>"), its first 8 bytes little endian.
    max_seconds: wall time after which the text ends, counted from when the engine takes the request.
    max_repetition: the text ends when the share of its latest 6-grams that are repeated exceeds this.
    thinking_budget: reasoning tokens after which the end of reasoning is forced.
    acceptance: rule by which drafted tokens are taken, "lossless" or "ratio:theta=0.3"; None = lossless.
    profile: values for what is not asked for here; chosen for a whole batch, not by a line of it.
    raw: whether `prompt` goes to the model as it is; else a bare prompt becomes one user message.
    """

    model: str | None = Field(None, min_length=1)
    messages: list[ChatMessage] | None = None
    prompt: str | None = None
    raw: bool = False
    tools: list[dict[str, JsonValue]] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    max_seconds: float | None = Field(None, gt=0)
    max_repetition: float | None = Field(None, gt=0, le=1)
    stop: list[str] = Field(default_factory=list, max_length=MAX_STOPS)
    stop_token_ids: list[int] = Field(default_factory=list)
    ignore_eos: bool = False
    seed: int | None = Field(None, ge=0, lt=2**64)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: Literal[False] = False
    response_format: ResponseFormat | None = None
    thinking: bool | None = None
    thinking_budget: int | None = Field(None, ge=0)
    reasoning_effort: ReasoningEffort | None = None
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    acceptance: str | None = None
    profile: NamedProfile | None = None
    passthrough: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _openai_names(cls, data: Any) -> Any:
        """Fold OpenAI's second names into one: max_completion_tokens, a single stop string, kept fields.

        A null is a value not asked for, as in OpenAI's own schema (`"n": null` in a dump of their client's model).
        """
        if not isinstance(data, dict):
            return data
        known = {*cls.model_fields, "max_completion_tokens"}
        body = {name: value for name, value in data.items() if value is not None or name not in known}
        if "max_completion_tokens" in body:
            other = body.pop("max_completion_tokens")
            if body.get("max_tokens", other) != other:
                raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
            body["max_tokens"] = other
        if isinstance(body.get("stop"), str):
            body["stop"] = [body["stop"]]
        kept = {name: body.pop(name) for name in PASSTHROUGH_FIELDS & body.keys()}
        if kept and isinstance(body.setdefault("passthrough", {}), dict):
            body["passthrough"] = {**body["passthrough"], **kept}
        return body

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stops: list[str]) -> list[str]:
        if "" in stops:
            raise ValueError("an empty stop string would match everywhere")
        return stops

    @field_validator("acceptance")
    @classmethod
    def _known_rule(cls, rule: str | None) -> str | None:
        if rule is not None:
            AcceptanceRule.parse(rule)
        return rule

    @model_validator(mode="after")
    def _one_input(self) -> RequestBody:
        if self.messages is None and self.prompt is None:
            raise ValueError("messages or prompt is missing")
        if self.messages is not None and self.prompt is not None:
            raise ValueError("messages and prompt are both given; give one of them")
        if self.messages is not None and not self.messages:
            raise ValueError("messages is empty")
        if self.raw and self.prompt is None:
            raise ValueError("raw goes with prompt, not with messages")
        return self

    @model_validator(mode="after")
    def _values_that_agree(self) -> RequestBody:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}")
        return self


class GenerationRequest(RequestBody):
    """A request with its identity: the one argument of the one job that a worker runs.

    expires_at: the deadline of its batch in seconds since the epoch, None = there is none. It comes from the ledger on
    the clock of that machine, and is in Redis on the clock of the server (api/queue/deadlines.py).
    """

    request_id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")
    expires_at: float | None = Field(None, ge=0)


class Usage(Contract):
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class RequestError(Contract):
    """Why a request has no text. `status` is the HTTP status of the output line."""

    code: str
    message: str
    status: int = 400


class ResolvedValue(Contract):
    """One sampling value in force, and where it came from."""

    value: JsonValue
    source: Literal["request", "profile", "card", "model", "default"]


class TopLogprob(Contract):
    token_id: int
    token: str
    logprob: float


class TokenLogprob(TopLogprob):
    top: list[TopLogprob] = Field(default_factory=list)


class Choice(Contract):
    """One answer to a prompt."""

    text: str = ""
    reasoning: str | None = None
    finish_reason: FinishReason | None = None
    matched_stop: str | int | None = None
    token_ids: list[int] = Field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None


class GenerationResult(Choice):
    """The answer to one request; `error` is set when there is none.

    further_choices: the answers after the first, of a request with n > 1. They are fewer than n - 1 when the request
    was cancelled or ran out of time: the last one then says so, and those after it were not begun.
    usage: the prompt once, the completion tokens of all choices.
    """

    request_id: str
    further_choices: list[Choice] = Field(default_factory=list)
    usage: Usage | None = None
    error: RequestError | None = None
    sampling: dict[str, ResolvedValue] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)

    @property
    def choices(self) -> list[Choice]:
        """All answers, in order; the first is this result itself."""
        return [self, *self.further_choices]

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled before all of its answers had ended."""
        return self.choices[-1].finish_reason == "cancelled"


class Phases(Contract):
    """Where the wall time went, in milliseconds; the phases add up to the wall."""

    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    sample: float = 0.0
    commit: float = 0.0
    other: float = 0.0


class JobStats(Contract):
    """Measurements of one generation, over all of its choices.

    first_pass_tokens: completion tokens that came with the first pass, which ended at ttft. decode_tps: those after
    it / (wall - ttft), per second. e2e_tps: completion tokens / wall.
    ttft_ms, wall_ms: milliseconds on the worker's monotonic clock. acceptance: accepted / drafted tokens, None when
    nothing was drafted. tokens_per_pass: completion tokens / passes. budgets: nodes in the tree -> number of passes.
    acceptance_collapsed_at: completion tokens before the first pass with which less than 10 % of the drafted tokens of
    the latest passes, just as many as hold 64 drafted tokens, were accepted; None = never.
    forced_tokens: accepted tokens that a relaxed acceptance rule took against the draw. peak_memory_bytes: MLX's.
    """

    wall_ms: float
    ttft_ms: float | None = None
    first_pass_tokens: int | None = None
    decode_tps: float | None = None
    e2e_tps: float | None = None
    passes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    forced_tokens: int = 0
    acceptance: float | None = None
    tokens_per_pass: float | None = None
    budgets: dict[int, int] = Field(default_factory=dict)
    phases: Phases = Field(default_factory=Phases)
    peak_memory_bytes: int = 0
    model: str = ""
    drafter: str = "none"
    verification: Literal["tree", "chain", "plain"] = "plain"
    acceptance_rule: str = "lossless"
    kernels: str = "stock"
    chip: str = ""
    acceptance_collapsed_at: int | None = None
    repetition: float = 0.0
    """Share of the completion that is repeated 6-grams: near 1 = the text loops. The highest of any choice."""
    longest_repeat: int | None = None
    """Tokens of the longest part that occurs twice in one choice, also overlapping itself; None = not measured."""


class RequestEvent(Contract):
    """One entry of the results stream: a notice of what became of an attempt, or how the request ended.

    handed_back: the attempt does not count. requeued: it came to nothing, and the request waits for another worker.
    finished: with the result. expired: the worker did not run it, or not to its end, since its deadline had passed.
    reason: of a request that was requeued.
    """

    kind: Literal["started", "handed_back", "requeued", "finished", "expired"]
    request_id: str
    worker: str
    attempt: int = Field(ge=1)
    at: float
    """Seconds since the epoch, on the worker's clock."""
    reason: str | None = Field(None, max_length=100)
    result: GenerationResult | None = None
    stats: JobStats | None = None

    @model_validator(mode="after")
    def _finished_has_result(self) -> RequestEvent:
        if (self.kind == "finished") != (self.result is not None):
            raise ValueError("exactly a finished event carries a result")
        return self

    @property
    def final(self) -> bool:
        """Whether the request is not to be run again after this."""
        return self.kind in ("finished", "expired")


WorkerState = Literal["starting", "idle", "busy", "pausing", "paused", "out", "draining", "stopping"]
"""out: its machine lost too many workers in a row (api/queue/deaths.py). The others: worker/duty.py."""


class WorkerInfo(Contract):
    """What a live worker tells about itself; it expires from Redis when the worker dies."""

    name: str
    model: str
    state: WorkerState
    host: str
    pid: int
    chip: str
    drafter: str
    verification: str
    kernels: str = ""
    """What stands in for MLX's own operations, as in `JobStats`."""
    request_id: str | None = None
    tokens: int = 0
    """Completion tokens of the running request."""
    tail: str = ""
    """The last characters that the running request has written."""
    completed: int = 0
    decode_tps: float | None = None
    """Tokens per second of the running request so far, or of the last one."""
    seen_at: float

    @property
    def serves(self) -> bool:
        """Whether it takes requests, or will when it has loaded its model, or finished one."""
        return self.state in ("starting", "idle", "busy")


class RequestCounts(Contract):
    queued: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, state) for state in RequestState)

    @property
    def finished(self) -> int:
        return self.total - self.queued - self.running


class Batch(Contract):
    """A batch as the ledger knows it; times are seconds since the epoch."""

    id: str
    model: str
    state: BatchState
    priority: Priority
    input_path: str
    input_sha256: str
    output_path: str | None
    created_at: float
    finished_at: float | None
    expires_at: float | None
    counts: RequestCounts
