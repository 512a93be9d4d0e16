"""One request: all of it as JSON for programs, and for people what was asked, what came, and how it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.text import Text

    from api.ledger.records import RecordedRequest
    from api.schemas import GenerationResult, RequestBody

# Of a result: shown as the answers, or too long to be read.
_NOT_FACTS = {"text", "reasoning", "token_ids", "logprobs", "request_id", "further_choices", "error"}


def request_row(row: RecordedRequest) -> dict[str, Any]:
    """Everything that the ledger has of a request."""
    return {
        "request_id": row.request_id,
        "custom_id": row.custom_id,
        "state": str(row.state),
        "attempts": row.attempts,
        "worker": row.worker,
        "body": row.body.model_dump(mode="json", exclude_defaults=True),
        "result": row.result.model_dump(mode="json") if row.result else None,
        "stats": row.stats.model_dump(mode="json") if row.stats else None,
    }


def print_request(row: RecordedRequest) -> None:
    from rich.console import Console

    console = Console()
    for part in _parts(row):
        console.print(part)


def _parts(row: RecordedRequest) -> Iterator[RenderableType]:
    from rich.pretty import Pretty

    yield _heading(f"{row.custom_id}  {row.state}")
    yield from _question(row.body)
    if row.result:
        yield from _answers(row.result)
        yield _heading("how")
        yield Pretty(row.result.model_dump(exclude=_NOT_FACTS, exclude_none=True))
    if row.stats:
        yield Pretty(row.stats.model_dump(exclude_none=True))


def _question(body: RequestBody) -> Iterator[RenderableType]:
    from rich.pretty import Pretty

    for message in body.messages or []:
        yield _text(f"{message.role}: {message.content or ''}")
    if body.prompt is not None:
        yield _text(body.prompt)
    if parameters := body.model_dump(exclude={"messages", "prompt"}, exclude_defaults=True):
        yield Pretty(parameters)


def _answers(result: GenerationResult) -> Iterator[RenderableType]:
    if result.error:
        yield _heading(f"error  {result.error.code}")
        yield _text(result.error.message)
        return
    several = len(result.choices) > 1
    for number, choice in enumerate(result.choices):
        yield _heading(f"choice {number}  {choice.finish_reason}" if several else "answer")
        if choice.reasoning is not None:
            yield _text(choice.reasoning, style="dim")
        yield _text(choice.text)


def _heading(title: str) -> RenderableType:
    from rich.rule import Rule

    return Rule(_text(title), align="left")


def _text(text: str, style: str = "") -> Text:
    """Text as it is: what looks like markup is none, and control characters are shown and not obeyed."""
    from rich.text import Text

    return Text(printable(text), style)
