"""DFlash 2: the candidate selector, which scores the candidates of neighbouring slots together."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from worker.engine.drafters.dflash.config import SecondConfig
from worker.engine.drafters.largest import largest
from worker.engine.sampling import Tokens


class CandidateSelector(nn.Module):  # type: ignore[misc]
    """Two codebooks [vocabulary, rank], of a token as predecessor and as successor."""

    def __init__(self, hidden: int, vocabulary: int, config: SecondConfig) -> None:
        super().__init__()
        self.candidates = config.candidates
        self.hidden_projection = nn.Linear(hidden, config.rank, bias=False)
        self.predecessor_codebook = mx.zeros((vocabulary, config.rank))
        self.successor_codebook = mx.zeros((vocabulary, config.rank))

    def lattice(self, hidden: mx.array, logits: mx.array, ids: Tokens | None, root: int) -> tuple[mx.array, mx.array]:
        """The candidates [slots, K] of each slot, ascending, and their scores [slots, K, K], float32.

        hidden: normed, [slots, hidden]. logits: [slots, columns], float32; ids: of the columns, None for the whole
        vocabulary. root: the token before the first slot, whose K rows are all equal.

        score[s, p, c] = logit[s, c] + sum over the rank of predecessor[p] * projected hidden[s] * successor[c], for
        candidate p of the slot before and candidate c of this one.
        """
        places = largest(logits, self.candidates)
        tokens = places if ids is None else mx.array(ids)[places]
        first = mx.full((1, tokens.shape[1]), root, dtype=tokens.dtype)
        before = mx.concatenate([first, tokens[:-1]])
        gates = self.hidden_projection(hidden)[:, None].astype(mx.float32)
        left = self.predecessor_codebook[before].astype(mx.float32) * gates
        right = self.successor_codebook[tokens].astype(mx.float32)
        own = mx.take_along_axis(logits, places, axis=-1)
        return tokens, own[:, None] + left @ right.swapaxes(-1, -2)
