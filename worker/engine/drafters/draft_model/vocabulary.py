"""Whether two tokenizers are the same: a draft model speaks in ids, so each has to mean the target's token.

Equal sizes say nothing. Families pad their embeddings to the same round numbers, and releases reassign special tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from api.errors import ModelError

# Words, numbers, code, letters beyond ASCII, white space and what looks like a marker: where pre-tokenizers differ.
SAMPLES = (
    "The quick brown fox doesn't jump over 1234567.89 lazy dogs.",
    "def f(x):\n\treturn x ** 2  # \u03c0 r\u00b2\n\n\n",
    "\u00bfQu\u00e9 tal? \u4f60\u597d\uff0c\u4e16\u754c \U0001f642",
    "<|im_start|>user\nHi<|im_end|>",
)


def check_same_vocabulary(target: Any, draft: Any, name: str) -> None:
    """Raises ModelError that names the first difference of the tokenizers of the target and of the draft model `name`.

    Both as mlx-lm loads them. Which tokens end a text is the target's business alone, and may differ.
    """
    difference = next(_differences(target, draft), None)
    if difference is not None:
        raise ModelError(
            f"draft model {name} does not speak the target's vocabulary: {difference}; take a smaller model of the "
            "target's own family"
        )


def known_ids(tokenizer: Any) -> int:
    """Ids from 0 on that the tokenizer can name; embeddings often have more rows."""
    return int(max(tokenizer.get_vocab().values())) + 1


def _differences(target: Any, draft: Any) -> Iterator[str]:
    yield from _different_ids(target.get_vocab(), draft.get_vocab())
    yield from _different_marks(target.added_tokens_decoder, draft.added_tokens_decoder)
    for sample in SAMPLES:
        theirs, own = (list(tokenizer.encode(sample)) for tokenizer in (target, draft))
        if theirs != own:
            yield f"{sample!r} is {theirs} in the target and {own} in the draft model"


def _different_ids(target: Mapping[str, int], draft: Mapping[str, int]) -> Iterator[str]:
    if target == draft:
        return
    for token, number in sorted(target.items(), key=lambda item: item[1]):
        if draft.get(token) != number:
            found = f"id {draft[token]}" if token in draft else "missing"
            yield f"token {token!r} is id {number} in the target and {found} in the draft model"
    for token, number in sorted(draft.items(), key=lambda item: item[1]):
        if token not in target:
            yield f"token {token!r} is id {number} in the draft model and missing in the target"


def _different_marks(target: Mapping[int, Any], draft: Mapping[int, Any]) -> Iterator[str]:
    """Which tokens are special, of those that were added to the vocabulary: by id, with their attribute `special`."""
    for number in sorted(target.keys() | draft.keys()):
        theirs, own = (bool(getattr(added.get(number), "special", False)) for added in (target, draft))
        if theirs != own:
            token = str(target.get(number) or draft.get(number))
            where, elsewhere = ("target", "draft model") if theirs else ("draft model", "target")
            yield f"token {token!r} (id {number}) is special in the {where} and not in the {elsewhere}"
