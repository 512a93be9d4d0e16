"""What a request's prompt begins with, as a short key: two keys tell how long a beginning two prompts share.

The key is a ladder. Each rung is a checksum of the first 256, 512, 1024, ... 32768 bytes of the prompt, as long as the
prompt has so many; so two prompts are the same for as many rungs as their keys are, and a shared beginning is known to
half its length. Nothing has to say where a system prompt, a few-shot header or a document ends. A prompt of less than
256 bytes, about 64 tokens, has no key: there is nothing to gain.

The prompt is what the model's template has to go by, in the order in which templates put it: the tools, then role and
text of each message. Options of the template are not in it.
"""

import json
import re
import zlib
from collections.abc import Iterator

from api.schemas import RequestBody

PREFIX_FIELD = "prefix"
"""Of a request's hash in Redis."""
RUNGS = tuple(256 << rung for rung in range(8))
"""Bytes of UTF-8."""
RUNG_CHARACTERS = 4
LONGEST_KEY = RUNG_CHARACTERS * len(RUNGS)

_KEY = re.compile(f"([0-9a-f]{{{RUNG_CHARACTERS}}}){{0,{len(RUNGS)}}}")


def prefix_key(request: RequestBody) -> str:
    """One rung after the other, four hexadecimal digits each; empty for a short prompt.

    Two prompts of different beginnings can have the same key: then they are served together for nothing.
    """
    text = _first(RUNGS[-1], _pieces(request))
    key, start, checksum = "", 0, 0
    for end in RUNGS:
        if len(text) < end:
            break
        checksum = zlib.crc32(text[start:end], checksum)
        key, start = f"{key}{checksum & 0xFFFF:04x}", end
    return key


def read_key(raw: bytes) -> str:
    """The key that a field of Redis holds; empty for whatever is none."""
    text = raw.decode("ascii", "replace")
    return text if _KEY.fullmatch(text) else ""


def _pieces(request: RequestBody) -> Iterator[str]:
    if request.tools and request.tool_choice != "none":
        yield json.dumps(request.tools)
    if request.prompt is not None:
        yield request.prompt if request.raw else f"\nuser\n{request.prompt}"
    for message in request.messages or []:
        yield f"\n{message.role}\n"
        yield message.content or ""
        if message.tool_calls:
            yield json.dumps([call.model_dump() for call in message.tool_calls])


def _first(count: int, pieces: Iterator[str]) -> bytes:
    """The first `count` bytes of the pieces together, without a look at the rest of a long one."""
    found = b""
    for piece in pieces:
        found += piece[:count].encode("utf-8", "surrogatepass")
        if len(found) >= count:
            break
    return found[:count]
