"""The example files are valid, of the kinds their README promises, and short enough for a slow machine."""

from collections import Counter
from pathlib import Path

import pytest

from api.dataset.reader import Dataset, InputLine, LineError

EXAMPLES = Path(__file__).parents[3] / "examples"
WORDS = {"copy": range(40, 111), "code": range(8, 31), "chat": range(8, 31)}


def requests(name: str, template: str | None = None) -> list[InputLine]:
    outcomes = list(Dataset(EXAMPLES / name, template=template))
    assert [outcome for outcome in outcomes if isinstance(outcome, LineError)] == []
    return [outcome for outcome in outcomes if isinstance(outcome, InputLine)]


def prompt_of(request: InputLine) -> str:
    body = request.body
    if body.messages is None:
        return body.prompt or ""
    return " ".join(message.content or "" for message in body.messages)


def kinds(name: str) -> Counter[str]:
    return Counter(request.custom_id.partition("-")[0] for request in requests(name))


def test_kinds_and_counts() -> None:
    assert kinds("batch.jsonl") == {"copy": 4, "code": 4, "chat": 4}
    assert kinds("short.jsonl") == {"copy": 7, "code": 4, "chat": 3}
    assert kinds("demo.jsonl") == {"copy": 4, "code": 3, "chat": 3}
    assert len(requests("prompts.txt")) == 6


@pytest.mark.parametrize("name", ["batch.jsonl", "short.jsonl", "demo.jsonl"])
def test_prompts_are_short(name: str) -> None:
    lengths = {r.custom_id: len(prompt_of(r).split()) for r in requests(name)}
    assert {cid: n for cid, n in lengths.items() if n not in WORDS[cid.partition("-")[0]]} == {}


def test_no_prompt_is_there_twice() -> None:
    names = ["batch.jsonl", "short.jsonl", "demo.jsonl", "prompts.txt"]
    prompts = [prompt_of(request) for name in names for request in requests(name)]
    assert len(set(prompts)) == len(prompts) == 42


def test_most_are_greedy_and_the_rest_are_seeded() -> None:
    bodies = [request.body for name in ("batch.jsonl", "short.jsonl") for request in requests(name)]
    warm = [body for body in bodies if body.temperature != 0]
    assert 4 <= len(warm) < len(bodies) / 2
    assert all(body.temperature == 0.8 and body.seed is not None for body in warm)
    assert any(body.top_p is not None for body in warm)
    assert {request.body.temperature for request in requests("demo.jsonl")} == {0.0}


def test_every_answer_is_bounded_by_its_file_or_by_the_command() -> None:
    bodies = [request.body for name in ("batch.jsonl", "short.jsonl") for request in requests(name)]
    assert all(body.max_tokens is not None and body.max_tokens <= 128 for body in bodies)
    commands = (EXAMPLES / "README.md").read_text("utf-8").splitlines()
    for name in ("demo.jsonl", "prompts.txt", "reviews.csv"):
        assert any(f"examples/{name}" in line and "--max-tokens" in line for line in commands)


def test_the_templated_batch_is_one_instruction_over_many_messages() -> None:
    lines = requests("templated.jsonl")
    assert kinds("templated.jsonl") == {"label": 100}
    instructions, messages = zip(*(prompt_of(line).split(" for this message: ") for line in lines), strict=True)
    assert len(set(instructions)) == 1
    assert len(set(messages)) == 100
    assert all(5 < len(message.split()) < 30 for message in messages)
    assert {(line.body.max_tokens, line.body.temperature) for line in lines} == {(80, 0)}


def test_the_table_fills_its_template() -> None:
    rows = requests("reviews.csv", "{product}: {text}")
    assert [row.custom_id for row in rows] == ["r1", "r2", "r3", "r4", "r5", "r6"]
    assert rows[2].body.prompt == 'backpack: The zip broke on the second day. The shop said "that happens".'
    assert [row.line for row in rows] == [2, 3, 4, 5, 6, 8]
