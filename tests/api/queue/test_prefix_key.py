"""The key of a prompt's beginning: equal rungs are shared bytes."""

import zlib
from typing import Any

import pytest
from redis import Redis

from api.queue.hardening import SafeJob
from api.queue.prefix_key import prefix_key, read_key
from api.queue.requests import RequestQueue
from api.schemas import GenerationRequest, RequestBody

HEADER = "".join(f"Rule {number}: answer in one sentence. " for number in range(100))


def key(prompt: str, **other: Any) -> str:
    return prefix_key(RequestBody(prompt=prompt, raw=True, **other))


def chat(system: str, user: str, **other: Any) -> str:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return prefix_key(RequestBody.model_validate({"messages": messages, **other}))


def shared_rungs(one: str, other: str) -> int:
    count = 0
    while count < min(len(one), len(other)) // 4 and one[: 4 * count + 4] == other[: 4 * count + 4]:
        count += 1
    return count


def test_each_rung_is_a_checksum_of_twice_as_many_bytes() -> None:
    assert key(HEADER[:1024]) == "".join(f"{zlib.crc32(HEADER[:n].encode()) & 0xFFFF:04x}" for n in (256, 512, 1024))
    assert len(key("x" * 40_000)) == 4 * 8


@pytest.mark.parametrize("length", [0, 1, 255])
def test_a_short_prompt_has_none(length: int) -> None:
    assert key("x" * length) == ""


@pytest.mark.parametrize(("shared", "rungs"), [(255, 0), (256, 1), (511, 1), (512, 2), (1500, 3), (2048, 4)])
def test_equal_rungs_tell_how_much_is_shared(shared: int, rungs: int) -> None:
    assert shared_rungs(key(HEADER[:shared] + "a" * 4096), key(HEADER[:shared] + "b" * 4096)) == rungs


def test_bytes_count_and_not_characters() -> None:
    assert key("é" * 127) == ""
    assert len(key("é" * 128)) == 4
    assert len(key("\ud800" * 86)) == 4  # JSON can spell half a character


def test_a_chat_is_its_tools_and_then_its_messages() -> None:
    system = HEADER[:600]
    assert shared_rungs(chat(system, "a" * 2000), chat(system, "b" * 2000)) == 2
    assert shared_rungs(chat(system, "a" * 2000), chat("You" + system, "a" * 2000)) == 0
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    assert shared_rungs(chat(system, "a", tools=tools), chat(system, "a")) == 0
    assert chat(system, "a", tools=tools, tool_choice="none") == chat(system, "a")


def test_a_bare_prompt_is_one_message_of_a_user() -> None:
    messages = [{"role": "user", "content": HEADER}]
    assert prefix_key(RequestBody(prompt=HEADER)) == prefix_key(RequestBody.model_validate({"messages": messages}))
    assert prefix_key(RequestBody(prompt=HEADER)) != key(HEADER)


def test_calls_of_tools_are_part_of_the_prompt() -> None:
    call = {"function": {"name": "look_up", "arguments": {"word": "x" * 300}}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert len(prefix_key(RequestBody.model_validate({"messages": messages}))) == 4


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"xyz1", b"12345", b"ABCD", b"12 4", b"1234\n", b"1234" * 9])
def test_what_is_no_key_counts_as_none(raw: bytes) -> None:
    assert read_key(raw) == ""


def test_it_is_kept_with_the_entry_as_long_as_that(queue: RequestQueue, redis: Redis) -> None:
    long = GenerationRequest(request_id="b-0", prompt=HEADER)
    short = GenerationRequest(request_id="b-1", prompt="Hello")
    queue.enqueue([long, short], model="m", priority="normal")
    jobs = [SafeJob.fetch(name, connection=redis, serializer="json") for name in ("b-0", "b-1")]  # type: ignore[arg-type]
    assert [job.prefix for job in jobs] == [prefix_key(long), ""]
    jobs[0].save()
    assert redis.hget("rq:job:b-0", "prefix") == prefix_key(long).encode()
    queue.forget(["b-0", "b-1"])
    assert redis.keys("*b-0*") == []
