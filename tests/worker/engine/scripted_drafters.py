"""Drafters that know, or think to know, what the target will say."""

import random
from collections.abc import Callable, Sequence

from worker.engine.drafters.protocol import DraftContext, DraftLimits, TextDrafter
from worker.engine.tree import TokenTree

Script = Callable[[int, TokenTree, DraftLimits], None]
"""script(emitted, tree, limits): add guesses, `emitted` completion tokens after the prompt."""


class ScriptedDrafter(TextDrafter):
    """Calls `script` for every draft, and records what it was asked for and told."""

    name = "scripted"

    def __init__(self, script: Script) -> None:
        self.script = script
        self.tokens: list[int] = []
        self.prompt_length = 0
        self.asked: list[tuple[int, DraftLimits]] = []

    def prefill(self, prompt: Sequence[int]) -> None:
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        assert tree.tokens == [self.tokens[-1]]
        emitted = len(self.tokens) - self.prompt_length
        self.asked.append((emitted, limits))
        self.script(emitted, tree, limits)

    def commit(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)


def add_chain(tree: TokenTree, tokens: Sequence[int], limits: DraftLimits, confidence: float = 0.9) -> list[int]:
    """Draft `tokens` below the root, as far as the limits allow; returns the nodes."""
    nodes = [0]
    for token in tokens[: limits.depth]:
        if len(tree) == limits.nodes:
            break
        nodes.append(tree.add(nodes[-1], token, confidence))
    return nodes[1:]


def chain_of(text: Sequence[int], length: int) -> Script:
    """Drafts the next `length` tokens of `text`."""

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        add_chain(tree, text[emitted : emitted + length], limits)

    return script


def random_trees(text: Sequence[int], vocabulary: int, seed: int, *, max_depth: int = 16, right: float = 0.7) -> Script:
    """Trees of random shape that mix the right tokens of `text` with wrong ones, also as siblings; some are empty."""
    rng = random.Random(seed)

    def script(emitted: int, tree: TokenTree, limits: DraftLimits) -> None:
        depth = min(max_depth, limits.depth)
        if depth == 0 or rng.random() < 0.1:
            return
        on_text = {0}
        for _ in range(rng.choice([1, 3, limits.nodes - 1, limits.nodes - 1]) * 2):
            if len(tree) == limits.nodes:
                return
            shallow = [node for node in range(len(tree)) if tree.depths[node] < depth]
            parent = rng.choice([max(shallow), max(on_text & set(shallow), default=0), rng.choice(shallow)])
            place = emitted + tree.depths[parent]
            if parent in on_text and place < len(text) and rng.random() < right:
                on_text.add(tree.add(parent, text[place], rng.random()))
            else:
                token = rng.randrange(vocabulary)
                node = tree.add(parent, token, rng.random())
                if parent in on_text and place < len(text) and token == text[place]:
                    on_text.add(node)

    return script
