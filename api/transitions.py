"""What the log says of a request: one line for each of its transitions, with the facts apart from the words.

The message of such a line is the transition's name; its `facts` are the request, the worker concerned and what else is
known: never a prompt, an answer, the message of an error (which may quote one), or a URL.

worker         taken        out of the queue, under a lease
               started      the engine has it (attempt)
               finished     with an answer or an error (attempt, finish_reason or error, tokens, ms, tokens_per_second)
               cancelled    its batch was cancelled while it ran (the same)
               expired      the deadline of its batch has passed (attempt)
               handed_back  this worker stops, or Redis refused its start (reason refused); the attempt does not count
               requeued     the attempt failed (reason); another machine is to try
               lease_lost   this worker was silent for too long: the request is another one's by now
               not_taken    it was answered, cancelled or handed on in the moment in which it was taken
who cleans up  requeued     its worker fell silent (reason lease_lost), and it waits again
               set_aside    that has happened too often; the recorder will fail it
recorder       recorded     its end is in the ledger (attempt, detail: the finish reason or the code of the error)
               late         an end after the first: noted, and dropped
               expired      by a worker's word
               failed       set aside, and now failed (error, reason)

Workers and recorders clean up. A batch that is cancelled, or expires, is a line and not as many as it has requests.
"""

from typing import Any

FACTS = "facts"
"""The attribute of a log record that holds the facts of a transition."""


def about(request: str, worker: str | None = None, **facts: Any) -> dict[str, dict[str, Any]]:
    """`extra` of a log call whose message names a transition; facts that are None are left out."""
    known = {"request": request, "worker": worker or None, **facts}
    return {FACTS: {name: value for name, value in known.items() if value is not None}}
