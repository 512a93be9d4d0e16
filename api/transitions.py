"""What the log says of a request: one line for each of its transitions, with the facts apart from the words.

The message of such a line is the transition's name, and its `facts` are the request, the worker concerned and what else
is known: never a prompt, an answer, the message of an error (which may quote one), or a URL.

worker     taken         out of the queue, under a lease
           started       the engine has it
           finished      an answer or an error: attempt, finish_reason or error, tokens, ms, tokens_per_second
           handed_back   this worker stops, or is not to go on; the attempt does not count
           requeued      the attempt failed (reason); another machine is to try
           cancelled     its batch was cancelled while it ran
           expired       the deadline of its batch has passed
           lease_lost    this worker was silent for too long: the request is another one's by now
whoever    requeued      its worker fell silent (reason lease_lost), and it waits again
keeps      set_aside     that has happened too often; its batch goes on without it
house
recorder   recorded      its answer is in the ledger: attempt, detail (finish reason or code of the error)
           late          an answer after the first: noted, and dropped
           failed        set aside, and therefore given up (detail: code of the error)
           cancelled, expired   decided by the ledger
"""

from typing import Any

from api.schemas import RequestEvent

FACTS = "facts"
"""The attribute of a log record that holds the facts of a transition."""


def about(request: str, worker: str | None = None, **facts: Any) -> dict[str, dict[str, Any]]:
    """`extra` of a log call whose message names a transition; facts that are None are left out."""
    known = {"request": request, "worker": worker or None, **facts}
    return {FACTS: {name: value for name, value in known.items() if value is not None}}


def ended(event: RequestEvent) -> tuple[str, dict[str, Any]]:
    """The transition by which a worker ends a request, and what there is to tell of it."""
    result, stats = event.result, event.stats
    if result is None:
        return event.kind, {}
    facts: dict[str, Any] = {"error": result.error.code} if result.error else {"finish_reason": result.finish_reason}
    if result.usage is not None:
        facts["tokens"] = result.usage.completion_tokens
    if stats is not None:
        facts |= {"ms": round(stats.wall_ms), "tokens_per_second": stats.decode_tps and round(stats.decode_tps, 2)}
    return "cancelled" if result.cancelled else "finished", facts
