"""From a request to the target's prompt tokens."""

from typing import Any

from api.schemas import ChatMessage, GenerationRequest, RequestError


class PromptError(Exception):
    """A prompt that this model cannot take; carries the request's error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.error = RequestError(code=code, message=message, status=400)


def prompt_tokens(request: GenerationRequest, tokenizer: Any) -> list[int]:
    """Token ids of the prompt: chat messages through the model's template, a raw prompt as it is.

    Raises PromptError: the template's own sentence when it refuses the messages, or an empty prompt.
    """
    if request.messages is None and (request.raw or not tokenizer.has_chat_template):
        return _raw_tokens(request.prompt or "", tokenizer)
    messages = request.messages or [ChatMessage(role="user", content=request.prompt)]
    return _chat_tokens(messages, request, tokenizer)


def _raw_tokens(prompt: str, tokenizer: Any) -> list[int]:
    bos = tokenizer.bos_token
    tokens = list(tokenizer.encode(prompt, add_special_tokens=not (bos and prompt.startswith(bos))))
    if tokens:
        return tokens
    if tokenizer.bos_token_id is None:
        raise PromptError("empty_prompt", "the prompt is empty, and this model has no token that begins a text")
    return [tokenizer.bos_token_id]


def _chat_tokens(messages: list[ChatMessage], request: GenerationRequest, tokenizer: Any) -> list[int]:
    if not tokenizer.has_chat_template:
        raise PromptError("chat_template_error", "this model has no chat template; send a prompt to /v1/completions")
    options: dict[str, Any] = dict(request.chat_template_kwargs)
    if request.thinking is not None:
        options["enable_thinking"] = request.thinking
    if request.reasoning_effort is not None:
        options["reasoning_effort"] = request.reasoning_effort
    if request.tools and request.tool_choice != "none":
        options["tools"] = request.tools
    try:
        rendered = tokenizer.apply_chat_template(
            [message.model_dump(exclude_none=True) for message in messages],
            add_generation_prompt=True,
            tokenize=True,
            **options,
        )
    except Exception as error:
        raise PromptError("chat_template_error", f"the chat template refused the messages: {error}") from error
    if not rendered:
        raise PromptError("empty_prompt", "the chat template makes no tokens of the messages")
    return list(rendered)


def split_reasoning(
    text: str, prompt_opens_thinking: bool, think_start: str | None, think_end: str | None
) -> tuple[str | None, str]:
    """Reasoning and content of a completion's text; reasoning is None when the model did not think.

    A reasoning that never ended (the token cap came first) is all reasoning and no content.
    """
    if think_start is None or think_end is None:
        return None, text
    opened = text.lstrip().startswith(think_start)
    if not opened and not prompt_opens_thinking:
        return None, text
    body = text.lstrip()[len(think_start) :] if opened else text
    reasoning, found, content = body.partition(think_end)
    return reasoning.strip("\n"), content.lstrip("\n") if found else ""
