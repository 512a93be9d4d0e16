"""The choice of a drafter: from the word that a user gives, and from what the checkpoints say of themselves.

    auto | none | PART[+PART...]        PART = NAME[:OPTION=VALUE[,OPTION=VALUE...]]
                                        NAME = suffix | mtp | a draft model or drafter's checkpoint

`auto` is the suffix drafter, and the target's own multi-token prediction head where its checkpoint carries one. A
checkpoint is named as models are: a directory, a GGUF file or a hub id; its config.json says what kind it is. Options
have the checkpoint's own values, or this program's, where nobody asks for another:

    a head          depth, beam: of its trees; hidden: normed or residual, the target's state that it reads
    a draft model   depth, beam
    an assistant    depth, beam; positions: constant or advancing
    DFlash          bits: 4 or 8, to quantise its matrices at load; block: slots; mask: causal or bidirectional;
                    vocabulary: how many tokens it guesses from
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

from api.errors import ModelError
from worker.engine.drafters.dflash import DFlashSettings, load_dflash
from worker.engine.drafters.draft_model import EXPANSION as DRAFT_MODEL_EXPANSION
from worker.engine.drafters.draft_model import load_draft_model
from worker.engine.drafters.draft_model.vocabulary import known_ids
from worker.engine.drafters.gemma_assistant import AssistantSettings, load_gemma_assistant
from worker.engine.drafters.metadata import HelperKind, helper_kind, read_config
from worker.engine.drafters.mixture import MixtureDrafter
from worker.engine.drafters.mtp import EXPANSION as MTP_EXPANSION
from worker.engine.drafters.mtp import HiddenState, MtpDrafter, find_mtp, load_mtp
from worker.engine.drafters.options import Options
from worker.engine.drafters.protocol import Drafter, NoDrafter
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.loading import Target, resolve
from worker.engine.memory import DoesNotFitError, MemoryLimit, ModelMemory, ReadWeights
from worker.engine.models import ModelSpec

AUTO, NONE, SUFFIX, MTP = "auto", "none", "suffix", "mtp"


@dataclass(frozen=True)
class DrafterLoader:
    """Loads drafters for `target`. data_dir, memory_limit_gb, notify: as for the target itself."""

    target: Target
    data_dir: Path
    memory_limit_gb: float | None = None
    notify: Callable[[str], None] = lambda _: None

    def load(self, choice: str) -> Drafter:
        """The drafter of `choice`. Raises ModelError when a part is unknown, broken, or does not fit the target."""
        if choice == NONE:
            return NoDrafter()
        if choice == AUTO:
            head = self._own_head_if_it_fits()
            return MixtureDrafter([SuffixDrafter(), head]) if head else SuffixDrafter()
        parts = [Options.split(part) for part in choice.split("+")]
        names = {name for name, _ in parts}
        if len(names) < len(parts) or {"", AUTO, NONE} & names:
            raise ModelError(
                f"drafter {choice!r}: give {AUTO}, {NONE}, or one or several of {SUFFIX}, {MTP} and checkpoints, "
                "each once, joined by +"
            )
        drafters = [self._part(name, options) for name, options in parts]
        for _, options in parts:
            options.close()
        return drafters[0] if len(drafters) == 1 else MixtureDrafter(drafters)

    def _part(self, name: str, options: Options) -> Drafter:
        if name == SUFFIX:
            return SuffixDrafter()
        if name == MTP:
            head = self._own_head(options)
            if head is None:
                raise ModelError(
                    f"drafter {MTP}: {self.target.spec} carries no multi-token prediction head; name the checkpoint of "
                    "one that was made for it, or use another drafter"
                )
            return head
        spec = ModelSpec.parse(name)
        directory = resolve(spec, self.data_dir / "models", self._memory, self.notify)
        return self._checkpoint(spec, directory, helper_kind(read_config(directory)), options)

    def _checkpoint(self, spec: ModelSpec, directory: Path, kind: HelperKind | None, options: Options) -> Drafter:
        read = self._memory.reader(str(spec))
        if kind == "dflash":
            settings = DFlashSettings.asked(options, self.target.tokenizer, self._addressable)
            drafter = load_dflash(directory, self.target.model, settings, read)
            if settings.vocabulary is not None and drafter.guessed_tokens is None:
                self.notify(
                    f"drafter {spec}: vocabulary has no effect, as the head of {self.target.spec} is of no use in part"
                )
            return drafter
        if kind == "gemma_assistant":
            return load_gemma_assistant(directory, self.target.model, AssistantSettings.asked(options), read)
        if kind == "mtp":
            head = self._head(directory, read, options)
            if head is None:
                raise ModelError(f"drafter {spec}: {directory} holds no tensors of a multi-token prediction head")
            return head
        expansion = DRAFT_MODEL_EXPANSION.asked(options)
        return load_draft_model(
            spec, self.target, self.data_dir, expansion=expansion, memory=self._memory, notify=self.notify
        )

    @property
    def _addressable(self) -> int:
        """Ids from here on mean nothing: embeddings often have more rows than there are tokens."""
        return min(self.target.vocabulary, known_ids(self.target.tokenizer))

    @cached_property
    def _memory(self) -> ModelMemory:
        """What the target leaves, and each part after it."""
        memory = ModelMemory(MemoryLimit.of(self.memory_limit_gb))
        memory.count(str(self.target.spec), self.target.model)
        return memory

    def _own_head_if_it_fits(self) -> MtpDrafter | None:
        try:
            return self._own_head(Options(MTP, {}))
        except DoesNotFitError as error:
            self.notify(f"drafting without the model's own multi-token prediction head: {error}")
            return None

    def _own_head(self, options: Options) -> MtpDrafter | None:
        """The head that comes with the target's checkpoint."""
        if not (self.target.directory / "config.json").is_file():
            return None
        return self._head(self.target.directory, self._memory.reader(MTP), options)

    def _head(self, directory: Path, read: ReadWeights, options: Options) -> MtpDrafter | None:
        source = find_mtp(directory)
        if source is None:
            return None
        hidden = options.choice("hidden", get_args(HiddenState)) or source.hidden
        expansion = MTP_EXPANSION.asked(options)
        head = load_mtp(source, self.target.model, read)
        return MtpDrafter(head, self.target.model, hidden=hidden, vocabulary=self._addressable, expansion=expansion)
