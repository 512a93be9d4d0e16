"""An engine without a model: the text follows from the prompt, and each token takes a settable time."""

import hashlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from api.schemas import GenerationRequest, GenerationResult, JobStats, Usage


@dataclass(frozen=True)
class ScriptedDescription:
    model: str = "scripted"
    chip: str = "paper"
    drafter: str = "none"
    verification: str = "plain"
    kernels: str = "stock"


def scripted_text(prompt: str, tokens: int) -> str:
    """`tokens` words that depend on the prompt alone."""
    return " ".join(hashlib.sha256(f"{prompt}/{index}".encode()).hexdigest()[:6] for index in range(tokens))


@dataclass
class ScriptedEngine:
    """A prompt that starts with "raise" raises, "fill" runs out of memory, "die" kills the process, and "fall asleep"
    stops it with its last token; some of them, with " on " and a machine behind, do so on that machine alone.

    log: a file that gets one line per start.
    """

    seconds_per_token: float = 0.0
    log: Path | None = None
    machine: str = ""
    on_start: Callable[[GenerationRequest], None] | None = None
    on_upkeep: Callable[[], None] | None = None
    description: ScriptedDescription = field(default_factory=ScriptedDescription)

    def generate(
        self,
        request: GenerationRequest,
        *,
        on_tokens: Callable[[str, int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> tuple[GenerationResult, JobStats]:
        self._note(request)
        prompt = request.prompt or ""
        if prompt.startswith("raise") and prompt.partition(" on ")[2] in ("", self.machine):
            raise RuntimeError(f"cannot take {prompt!r}")
        if prompt.startswith("fill") and prompt.partition(" on ")[2] in ("", self.machine):
            raise MemoryError(f"cannot hold {prompt!r}")
        if prompt == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        wanted = request.max_tokens or 4
        words = scripted_text(prompt, wanted).split()
        done: list[str] = []
        for word in words:
            if should_stop is not None and should_stop():
                break
            time.sleep(self.seconds_per_token)
            done.append(word)
            if on_tokens is not None:
                on_tokens(f"{word} ", len(done))
        if prompt.startswith("fall asleep on ") and prompt.endswith(self.machine):
            os.kill(os.getpid(), signal.SIGSTOP)
        finish = "length" if len(done) == wanted else "cancelled"
        usage = Usage(prompt_tokens=len(prompt.split()), completion_tokens=len(done))
        result = GenerationResult(request_id=request.request_id, text=" ".join(done), finish_reason=finish, usage=usage)
        return result, JobStats(wall_ms=1.0, model=self.description.model)

    def upkeep(self) -> None:
        if self.on_upkeep is not None:
            self.on_upkeep()

    def close(self) -> None:
        if self.log is not None:
            self.log.with_suffix(".closed").touch()

    def _note(self, request: GenerationRequest) -> None:
        if self.on_start is not None:
            self.on_start(request)
        if self.log is not None:
            with self.log.open("a") as log:
                log.write(f"{request.request_id} {os.getpid()}\n")
