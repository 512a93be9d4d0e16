"""One generation of a tiny model under adversarial trees, and the plain decoding that it has to equal."""

from dataclasses import dataclass, field
from typing import Any

from engine_maker import EngineFor
from mlx_lm.sample_utils import make_logits_processors
from plain_decoding import plain_tokens
from scripted_drafters import ScriptedDrafter, random_trees
from toy_tokenizer import VOCABULARY_TOKENS, token_id

from api.schemas import GenerationRequest
from worker.engine.engine import Engine
from worker.engine.sampling import Sampling
from worker.engine.verify.verifier import Mode

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")


@dataclass(frozen=True)
class Case:
    """What is asked for. `sampling` are request parameters; greedy when it is empty."""

    prompt: str = "The-quick-brown-fox"
    tokens: int = 200
    sampling: dict[str, Any] = field(default_factory=dict)

    @property
    def prompt_ids(self) -> list[int]:
        return [token_id(character) for character in self.prompt]

    @property
    def request(self) -> GenerationRequest:
        values = {"prompt": self.prompt, "raw": True, "ignore_eos": True, "max_tokens": self.tokens, **self.sampling}
        return GenerationRequest.model_validate({"request_id": "r-1", **values})

    def plain(self, model: Any) -> list[int]:
        """mlx-lm's generate_step with the keyed draw as its sampler and its own logits processors."""
        draws = {name: value for name, value in self.sampling.items() if name not in PENALTIES}
        size = draws.pop("penalty_context_size", 20)
        sizes = {f"{kind}_context_size": size for kind in ("repetition", "presence", "frequency")}
        penalties = {name: self.sampling[name] for name in PENALTIES if name in self.sampling}
        return plain_tokens(
            model,
            self.prompt_ids,
            self.tokens,
            sampling=Sampling(**draws) if draws else None,
            processors=make_logits_processors(**penalties, **sizes) if penalties else None,
        )


def engine_under_trees(
    engine_for: EngineFor,
    model: Any,
    mode: Mode,
    expected: list[int],
    seed: int,
    nodes: int = 32,
    prefill_chunk: int = 2048,
) -> Engine:
    """Verifies random trees of up to `nodes` nodes and depth 16: tokens of `expected`, and wrong ones."""
    drafter = ScriptedDrafter(random_trees(expected, len(VOCABULARY_TOKENS), seed))
    return engine_for(model, nodes=nodes, drafter=drafter, mode=mode, prefill_chunk=prefill_chunk)
