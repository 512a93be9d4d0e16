"""A real tokenizer over a toy vocabulary of 97 tokens: printable ASCII without the space, and three markers.

Token id = position in VOCABULARY_TOKENS, so tests can name tokens by their character.
"""

from collections.abc import Iterable

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

END, THINK, THINK_END = "<eos>", "<think>", "</think>"
VOCABULARY_TOKENS = [END, THINK, THINK_END, *(chr(code) for code in range(0x21, 0x7F))]
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('No user query found in messages.') }}{% endif %}"
    "{{ message.role[0] }}:{{ message.content }}|"
    "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


def toy_tokenizer(
    *, end_tokens: Iterable[int] = (), thinks: bool = False, template: str | None = None, extra: Iterable[str] = ()
) -> TokenizerWrapper:
    """end_tokens: ids that end a text besides <eos>. extra: tokens of several characters, after the 97."""
    names = VOCABULARY_TOKENS if thinks else [END, "<a>", "<b>", *VOCABULARY_TOKENS[3:]]
    vocabulary = {token: number for number, token in enumerate([*names, *extra])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in names[:3]])
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, clean_up_tokenization_spaces=False)
    if template:
        fast.chat_template = template
    return TokenizerWrapper(fast, eos_token_ids=[0, *end_tokens])


def token_id(character: str) -> int:
    return VOCABULARY_TOKENS.index(character)


def text_of(tokens: Iterable[int]) -> str:
    """The text of tokens that are no markers, without any tokenizer."""
    return "".join(VOCABULARY_TOKENS[token] for token in tokens)
