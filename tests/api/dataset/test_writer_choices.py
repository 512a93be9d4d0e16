"""Several choices of one request, in every format."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from api.dataset.writer import openai_line, write_results
from api.ledger.records import RecordedRequest
from api.schemas import Choice, RequestError, TokenLogprob, Usage
from api.states import RequestState

Make = Callable[..., RecordedRequest]
CHAT = {"messages": [{"role": "user", "content": "2+2"}], "n": 3}
RAW = {"prompt": "2+2", "raw": True, "n": 3}
FURTHER = [
    Choice(text="four", reasoning="so", finish_reason="repetition", token_ids=[5, 6, 7]),
    Choice(text="", finish_reason="time_limit"),
]


@pytest.fixture
def three(completed: Make) -> RecordedRequest:
    """Nine completion tokens: six of the first choice, three of the second, none of the third."""
    usage = Usage(prompt_tokens=5, completion_tokens=9)
    return completed(0, "4", body=CHAT, further_choices=FURTHER, token_ids=[1] * 6, usage=usage)


def test_openai_lines_have_every_choice_with_its_index(three: RecordedRequest) -> None:
    body = openai_line(three)["response"]["body"]
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "4", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        },
        {
            "index": 1,
            "message": {"role": "assistant", "content": "four", "refusal": None, "reasoning_content": "so"},
            "logprobs": None,
            "finish_reason": "repetition",
        },
        {
            "index": 2,
            "message": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": "time_limit",
        },
    ]
    assert body["usage"]["completion_tokens"] == 9
    assert body["usage"]["prompt_tokens"] == 5


def test_text_completions_have_every_choice_with_its_own_logprobs(completed: Make) -> None:
    entry = TokenLogprob(token_id=1, token="x", logprob=-0.5)
    further = [Choice(text="b", finish_reason="length", logprobs=[entry])]
    choices = openai_line(completed(0, "a", body=RAW, further_choices=further))["response"]["body"]["choices"]
    assert choices[0] == {"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop"}
    assert choices[1]["index"] == 1
    assert choices[1]["text"] == "b"
    assert choices[1]["logprobs"]["token_logprobs"] == [-0.5]


def test_json_lines_list_the_choices_of_a_request_that_asked_for_several(
    three: RecordedRequest, completed: Make, unanswered: Make, tmp_path: Path
) -> None:
    path = tmp_path / "out.jsonl"
    failed = unanswered(RequestState.FAILED, RequestError(code="x", message="m"), 2)
    alone = completed(1, "only", body=CHAT)
    assert write_results([three, alone, completed(3), failed], path, "jsonl") == 4
    several, cut_short, single, none = map(json.loads, path.read_text("utf-8").splitlines())
    assert several["choices"] == [
        {"index": 0, "text": "4", "finish_reason": "stop"},
        {"index": 1, "text": "four", "reasoning": "so", "finish_reason": "repetition"},
        {"index": 2, "text": "", "finish_reason": "time_limit"},
    ]
    assert (several["text"], several["finish_reason"], several["usage"]["completion_tokens"]) == ("4", "stop", 9)
    assert cut_short["choices"] == [{"index": 0, "text": "only", "finish_reason": "stop"}]
    assert "choices" not in single
    assert "choices" not in none


def table(path: Path, fmt: str) -> list[dict[str, Any]]:
    if fmt == "parquet":
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        return rows
    numbers = ("choice", "prompt_tokens", "cached_prompt_tokens", "completion_tokens")
    with open(path, newline="", encoding="utf-8") as stream:
        return [
            {name: int(value) if name in numbers and value else value or None for name, value in row.items()}
            for row in csv.DictReader(stream, strict=True)
        ]


@pytest.mark.parametrize("fmt", ["csv", "parquet"])
def test_tables_have_a_row_per_choice_and_count_the_request_once(
    three: RecordedRequest, completed: Make, unanswered: Make, tmp_path: Path, fmt: Any
) -> None:
    path = tmp_path / "out"
    rows = [three, completed(1, "single"), unanswered(RequestState.CANCELLED, index=2)]
    assert write_results(rows, path, fmt) == 3
    columns = (
        "custom_id",
        "choice",
        "text",
        "finish_reason",
        "prompt_tokens",
        "cached_prompt_tokens",
        "completion_tokens",
    )
    written = [tuple(row[name] for name in columns) for row in table(path, fmt)]
    empty = None if fmt == "csv" else ""
    assert written == [
        ("c0", 0, "4", "stop", 5, 0, 6),
        ("c0", 1, "four", "repetition", None, None, 3),
        ("c0", 2, empty, "time_limit", None, None, 0),
        ("c1", 0, "single", "stop", 5, 3, 2),
        ("c2", None, None, None, None, None, None),
    ]
    walls = [row["wall_ms"] for row in table(path, fmt)]
    assert [wall is None for wall in walls] == [False, True, True, False, True]
    assert [row["reasoning"] for row in table(path, fmt)][:2] == [None, "so"]
    assert [row["error_code"] for row in table(path, fmt)] == [None] * 4 + ["batch_cancelled"]


def test_texts_stand_for_the_choices_that_were_asked_for(
    three: RecordedRequest, completed: Make, tmp_path: Path
) -> None:
    """Also where one was not begun, so that every n-th text begins the next request."""
    path = tmp_path / "out.txt"
    assert write_results([three, completed(1, "only", body=CHAT), completed(2, "single")], path, "text") == 3
    texts = path.read_text("utf-8").split("\n\x1e\n")
    assert texts == ["4", "four", "", "only", "", "", "single", ""]
