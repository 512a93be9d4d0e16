"""Output lines in OpenAI's format, compared with what its batch API documents."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.dataset.json_line import object_of
from api.dataset.lines import Line, physical_lines
from api.dataset.writer import openai_line, write_results
from api.schemas import RequestError, TokenLogprob, TopLogprob, Usage
from api.states import RequestState

ULID = "01JABCDEFGHJKMNPQRSTVWXYZ0"
Make = Callable[..., Any]


def test_chat_completion(completed: Make) -> None:
    row = completed(
        7, "4", usage=Usage(prompt_tokens=5, completion_tokens=2, cached_prompt_tokens=3, reasoning_tokens=1)
    )
    assert openai_line(row) == {
        "id": f"batch_req_{ULID}-7",
        "custom_id": "c7",
        "response": {
            "status_code": 200,
            "request_id": f"batch_{ULID}-7",
            "body": {
                "id": f"chatcmpl-{ULID}-7",
                "object": "chat.completion",
                "created": 1700000000,
                "model": "smollm2",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "4", "refusal": None},
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": {
                    "prompt_tokens": 5,
                    "completion_tokens": 2,
                    "total_tokens": 7,
                    "prompt_tokens_details": {"cached_tokens": 3},
                    "completion_tokens_details": {"reasoning_tokens": 1},
                },
            },
        },
        "error": None,
    }


def test_reasoning_and_length(completed: Make) -> None:
    [choice] = openai_line(completed(reasoning="because", finish_reason="length"))["response"]["body"]["choices"]
    assert choice["message"] == {"role": "assistant", "content": "4", "refusal": None, "reasoning_content": "because"}
    assert choice["finish_reason"] == "length"


def test_a_raw_prompt_is_a_text_completion_and_a_short_one_is_chat(completed: Make) -> None:
    raw = openai_line(completed(text=" there", body={"prompt": "Hello", "raw": True}))["response"]["body"]
    assert (raw["object"], raw["id"]) == ("text_completion", f"cmpl-{ULID}-0")
    assert raw["choices"] == [{"index": 0, "text": " there", "logprobs": None, "finish_reason": "stop"}]
    assert openai_line(completed(body={"prompt": "Hello"}))["response"]["body"]["object"] == "chat.completion"


def test_logprobs_are_finite_in_both_shapes(completed: Make) -> None:
    top = [TopLogprob(token_id=1, token="é", logprob=-0.25), TopLogprob(token_id=2, token="b", logprob=float("-inf"))]
    tokens = [
        TokenLogprob(token_id=1, token="é", logprob=-0.25, top=top),
        TokenLogprob(token_id=3, token="!", logprob=float("-inf")),
    ]
    chat = openai_line(completed(logprobs=tokens))["response"]["body"]["choices"][0]["logprobs"]
    e_acute = {"token": "é", "logprob": -0.25, "bytes": [0xC3, 0xA9]}
    assert chat == {
        "content": [
            {**e_acute, "top_logprobs": [e_acute, {"token": "b", "logprob": -9999.0, "bytes": [98]}]},
            {"token": "!", "logprob": -9999.0, "bytes": [33], "top_logprobs": []},
        ],
        "refusal": None,
    }
    raw = openai_line(completed(logprobs=tokens, body={"prompt": "x", "raw": True}))
    assert raw["response"]["body"]["choices"][0]["logprobs"] == {
        "tokens": ["é", "!"],
        "token_logprobs": [-0.25, -9999.0],
        "top_logprobs": [{"é": -0.25, "b": -9999.0}, {}],
        "text_offset": [0, 1],
    }


def test_a_failed_request_carries_its_own_status(unanswered: Make) -> None:
    too_long = RequestError(code="context_length_exceeded", message="9 tokens do not fit 8", status=400)
    assert openai_line(unanswered(RequestState.FAILED, too_long)) == {
        "id": f"batch_req_{ULID}-0",
        "custom_id": "c0",
        "response": {
            "status_code": 400,
            "request_id": f"batch_{ULID}-0",
            "body": {
                "error": {
                    "message": "9 tokens do not fit 8",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "context_length_exceeded",
                }
            },
        },
        "error": None,
    }
    poison = openai_line(unanswered(RequestState.FAILED, RequestError(code="worker_lost", message="m", status=500)))
    assert poison["response"]["status_code"] == 500
    assert poison["response"]["body"]["error"]["type"] == "server_error"


def test_a_request_without_a_result_has_no_response(unanswered: Make) -> None:
    codes = {}
    for state in (RequestState.CANCELLED, RequestState.EXPIRED, RequestState.QUEUED, RequestState.RUNNING):
        line = openai_line(unanswered(state))
        assert line["response"] is None
        assert line["error"]["message"].endswith(".")
        codes[state.value] = line["error"]["code"]
    cancelled = openai_line(unanswered(RequestState.CANCELLED))["error"]
    assert cancelled["message"] == "The batch was cancelled before this request had finished."
    assert codes == {
        "cancelled": "batch_cancelled",
        "expired": "batch_expired",
        "queued": "request_not_finished",
        "running": "request_not_finished",
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text()))
def test_any_text_comes_back_through_our_own_reader(completed: Make, tmp_path: Path, texts: list[str]) -> None:
    rows = [completed(index, text) for index, text in enumerate(texts)]
    for fmt, text_of in (
        ("openai", lambda record: record["response"]["body"]["choices"][0]["message"]["content"]),
        ("jsonl", lambda record: record["text"]),
    ):
        path = tmp_path / "out.jsonl"
        assert write_results(rows, path, fmt) == len(texts)
        with open(path, "rb") as stream:
            lines = [line for line in physical_lines(stream, "out", 1 << 20) if isinstance(line, Line)]
        assert [text_of(object_of(line.content)) for line in lines] == texts
        assert [text_of(json.loads(line.content)) for line in lines] == texts
