"""The choice of a drafter: from the word that a user gives, and from what the checkpoints say of themselves.

    auto | none | PART[+PART...]        PART = NAME[:OPTION=VALUE[,OPTION=VALUE...]]
                                        NAME = suffix | mtp | a draft model or drafter's checkpoint

What `auto` stands for is found by `selection`. A checkpoint is named as models are: a directory, a GGUF file or a hub
id; its config.json says what kind it is. Options have the checkpoint's own values, or this program's, where nobody asks
for another:

    a head          depth, beam: of its trees; hidden: normed or residual, the target's state that it reads
    a draft model   depth, beam
    an assistant    depth, beam; positions: constant or advancing
    DFlash          bits: 4 or 8, to quantise its matrices at load; block: slots; mask: causal or bidirectional;
                    vocabulary: how many tokens it guesses from
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, get_args

from api.errors import ModelError
from worker.engine.drafters.dflash import DFlashSettings, load_dflash
from worker.engine.drafters.draft_model import EXPANSION as DRAFT_MODEL_EXPANSION
from worker.engine.drafters.draft_model import load_draft_model
from worker.engine.drafters.draft_model.vocabulary import known_ids
from worker.engine.drafters.gemma_assistant import AssistantSettings, load_gemma_assistant
from worker.engine.drafters.metadata import HelperKind, helper_kind, read_config
from worker.engine.drafters.mixture import MixtureDrafter
from worker.engine.drafters.mtp import EXPANSION as MTP_EXPANSION
from worker.engine.drafters.mtp import HiddenState, MtpDrafter, MtpSource, find_mtp, load_mtp
from worker.engine.drafters.named_parts import MTP, SUFFIX, named_parts
from worker.engine.drafters.options import Options
from worker.engine.drafters.protocol import Drafter, NoDrafter
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.loading import Target, contents_identity, resolve
from worker.engine.memory import MemoryLimit, ModelMemory, ReadWeights
from worker.engine.models import ModelSpec

PartKind = Literal["suffix", "own head", "draft model"] | HelperKind


@dataclass(frozen=True)
class Part:
    """One source of guesses. spec, directory: of its checkpoint, None for the suffix drafter and the target's own head.

    identity: changes whenever its checkpoint may have changed.
    """

    kind: PartKind
    name: str
    options: Options
    identity: str = ""
    spec: ModelSpec | None = None
    directory: Path | None = None

    def __str__(self) -> str:
        """What it is, in contents and not in name."""
        dtype = self.spec.dtype if self.spec else None
        facts = {"options": str(self.options), "type": dtype or "", "identity": self.identity}
        return " ".join([self.kind, *(f"{name} {fact}" for name, fact in facts.items() if fact)])


@dataclass(frozen=True)
class DrafterLoader:
    """Loads drafters for `target`. data_dir, memory_limit_gb, notify: as for the target itself."""

    target: Target
    data_dir: Path
    memory_limit_gb: float | None = None
    notify: Callable[[str], None] = lambda _: None

    def parts(self, choice: str) -> list[Part]:
        """What `choice` names: checkpoints are found, or fetched, and not read.

        Raises ModelError for what makes no sense, and for a part that is unknown.
        """
        return [self._part(name, options) for name, options in named_parts(choice)]

    def load(self, choice: str) -> Drafter:
        """The drafter of `choice`. Raises ModelError when a part is unknown, broken, or does not fit the target."""
        parts, memory = self.parts(choice), cache(self._memory)
        drafters = [self._drafter(part, memory) for part in parts]
        for part in parts:
            part.options.close()
        if not drafters:
            return NoDrafter()
        return drafters[0] if len(drafters) == 1 else MixtureDrafter(drafters)

    @cached_property
    def own_head(self) -> MtpSource | None:
        """The multi-token prediction head that comes with the target's checkpoint. Raises ModelError."""
        directory = self.target.directory
        return find_mtp(directory) if (directory / "config.json").is_file() else None

    def _part(self, name: str, options: Options) -> Part:
        if name == SUFFIX:
            return Part("suffix", name, options)
        if name == MTP:
            head = self.own_head
            if head is None:
                raise ModelError(
                    f"drafter {MTP}: {self.target.spec} carries no multi-token prediction head; name the checkpoint of "
                    "one that was made for it, or use another drafter"
                )
            return Part("own head", name, options, contents_identity(head.directory, head.files))
        spec = ModelSpec.parse(name)
        directory = self._directories.get(spec)
        if directory is None:
            directory = resolve(spec, self.data_dir / "models", self._memory(), self.notify)
            self._directories[spec] = directory
        kind = helper_kind(read_config(directory)) or "draft model"
        identity = contents_identity(directory, directory.glob("*.safetensors"))
        return Part(kind, name, options, identity, spec, directory)

    @cached_property
    def _directories(self) -> dict[ModelSpec, Path]:
        """Of the checkpoints that were found: the hub is asked once."""
        return {}

    def _drafter(self, part: Part, memory: Callable[[], ModelMemory]) -> Drafter:
        """memory: of all parts together."""
        if part.kind == "suffix":
            return SuffixDrafter()
        if part.kind == "own head":
            assert self.own_head is not None
            return self._head(self.own_head, memory().reader(MTP), part.options)
        assert part.spec is not None
        assert part.directory is not None
        spec, directory, options = part.spec, part.directory, part.options
        read = memory().reader(str(spec))
        if part.kind == "dflash":
            settings = DFlashSettings.asked(options, self.target.tokenizer, self._addressable)
            drafter = load_dflash(directory, self.target.model, settings, read)
            if settings.vocabulary is not None and drafter.guessed_tokens is None:
                self.notify(
                    f"drafter {spec}: vocabulary has no effect, as the head of {self.target.spec} is of no use in part"
                )
            return drafter
        if part.kind == "gemma_assistant":
            return load_gemma_assistant(directory, self.target.model, AssistantSettings.asked(options), read)
        if part.kind == "mtp":
            source = find_mtp(directory)
            if source is None:
                raise ModelError(f"drafter {spec}: {directory} holds no tensors of a multi-token prediction head")
            return self._head(source, read, options)
        expansion = DRAFT_MODEL_EXPANSION.asked(options)
        return load_draft_model(
            spec, self.target, self.data_dir, expansion=expansion, memory=memory(), notify=self.notify
        )

    @property
    def _addressable(self) -> int:
        """Ids from here on mean nothing: embeddings often have more rows than there are tokens."""
        return min(self.target.vocabulary, known_ids(self.target.tokenizer))

    def _memory(self) -> ModelMemory:
        """What the target leaves, and each part after it."""
        memory = ModelMemory(MemoryLimit.of(self.memory_limit_gb))
        memory.count(str(self.target.spec), self.target.model)
        return memory

    def _head(self, source: MtpSource, read: ReadWeights, options: Options) -> MtpDrafter:
        hidden = options.choice("hidden", get_args(HiddenState)) or source.hidden
        expansion = MTP_EXPANSION.asked(options)
        head = load_mtp(source, self.target.model, read)
        return MtpDrafter(head, self.target.model, hidden=hidden, vocabulary=self._addressable, expansion=expansion)
