"""JSON lines in: what runs, and the number, code and sentence of what does not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.dataset.json_line import object_of
from api.dataset.problem import Problem
from api.dataset.reader import Dataset, InputLine, LineError, Validation, validate
from api.dataset.request_line import request_line
from api.errors import InputError
from api.schemas import PASSTHROUGH_FIELDS, ChatMessage, RequestBody

Read = Callable[..., list[InputLine | LineError]]


def openai(custom_id: Any = "a", **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body} | fields
    return {name: value for name, value in line.items() if value is not ...}


def error(read: Read, record: Any) -> tuple[str, str]:
    [outcome] = read(json.dumps(record) + "\n")
    assert isinstance(outcome, LineError), outcome
    return outcome.code, outcome.message


def body(read: Read, record: Any, **options: Any) -> dict[str, Any]:
    [outcome] = read(json.dumps(record) + "\n", **options)
    assert isinstance(outcome, InputLine), outcome
    return outcome.body.model_dump(exclude_defaults=True)


def test_kinds_of_lines_may_be_mixed(read: Read) -> None:
    completions = openai("b", url="/v1/completions", body={"model": "m", "prompt": "Once"})
    short = {"prompt": "hi", "id": "s", "temperature": 0}
    outcomes = read("".join(json.dumps(record) + "\n" for record in (openai(), completions, short)))
    assert [(o.line, o.custom_id, o.body.prompt, o.body.raw) for o in outcomes if isinstance(o, InputLine)] == [
        (1, "a", None, False),
        (2, "b", "Once", True),
        (3, "s", "hi", False),
    ]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"top_logprobs": 2}, "top_logprobs needs logprobs to be true"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs needs logprobs to be true"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens 3 is more than max_tokens 2"),
        ({"min_tokens": 3, "max_completion_tokens": 2}, "min_tokens 3 is more than max_tokens 2"),
    ],
)
def test_values_that_contradict_each_other(read: Read, values: dict[str, Any], says: str) -> None:
    assert error(read, {"prompt": "x", **values}) == ("invalid_request", says)


@pytest.mark.parametrize("values", [{"top_logprobs": 0}, {"min_tokens": 2, "max_tokens": 2}, {"min_tokens": 9999}])
def test_values_that_just_agree(read: Read, values: dict[str, Any]) -> None:
    assert body(read, {"prompt": "x", **values})["prompt"] == "x"


def test_malformed_line_in_the_middle(read: Read) -> None:
    first, bad, last = read(
        '{"custom_id":"a","prompt":"one"}\n{"custom_id":"b","prompt":"two"\n{"custom_id":"c","prompt":"three"}\n'
    )
    assert isinstance(first, InputLine)
    assert isinstance(last, InputLine)
    assert bad == LineError(2, "invalid_json_line", "ends inside an object, column 31", None)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('["a"]', "an array, where an object is expected"),
        ('"a"', "a string, where an object is expected"),
        ("7", "a number, where an object is expected"),
        ("null", "null, where an object is expected"),
        ('{"prompt":"cut', "ends inside a string, column 14"),
        ('{"messages":[1', "ends inside an array, column 14"),
        ('{"prompt":', "ends where a value is expected, column 10"),
        ('{"prompt":"a"} x', "text after the end of the object, column 16"),
        ('{"prompt":"a",}', "comma before a closing bracket, column 15"),
        ("{'prompt':1}", "key in double quotes expected, column 2"),
        ('{"prompt":"a" "n":1}', "comma or closing brace expected, column 15"),
        ('{"prompt":"a\tb"}', "control character inside a string, column 13"),
        ('{"prompt":"a\rb"}', "control character inside a string, column 13"),
        ('{"prompt":"\\q"}', "invalid escape after a backslash, column 13"),
        ('{"top_p":NaN}', "value expected, column 10"),
        ('{"top_p":1e999}', "number 1e999 is out of range"),
        ('{"é":"é" 1}', "comma or closing brace expected, column 10"),
        ('{"prompt":"cut \\ud83d"}', "unpaired surrogate at column 22"),
        ('{"prompt":"\\udc00 low"}', "unpaired surrogate at column 17"),
        ('{"custom_id":"y","custom_id":"z","prompt":"4"}', 'key "custom_id" appears twice in one object'),
        ('{"messages":[{"role":"user","role":"system"}]}', 'key "role" appears twice in one object'),
        ('{"a":' + "[" * 5000 + "]" * 5000 + "}", "nested too deeply, column 206"),
    ],
)
def test_invalid_json_is_explained(read: Read, line: str, sentence: str) -> None:
    [outcome] = read(line + "\n{}\n")[:1]
    assert outcome == LineError(1, "invalid_json_line", sentence, None)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)))
def test_every_json_object_is_read_whole(record: dict[str, Any]) -> None:
    assert object_of(json.dumps(record)) == record
    assert object_of(json.dumps(record, ensure_ascii=False)) == record


@given(st.text())
def test_no_text_crashes_the_reader(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        with pytest.raises(Problem):
            object_of(text)


def test_custom_ids(read: Read) -> None:
    lines = [
        '{"custom_id":"x","prompt":"1"}',
        "",
        '{"custom_id":"x","prompt":"2"}',
        '{"custom_id":7,"prompt":"3"}',
        '{"id":7,"prompt":"4"}',
        '{"id":1.5,"prompt":"5"}',
        '{"prompt":"6"}',
        '{"custom_id":"request-7","prompt":"7"}',
        '{"id":true,"prompt":"8"}',
        '{"id":"p","custom_id":"q","prompt":"9"}',
    ]
    outcomes = read("\n".join(lines))
    assert [(o.line, o.custom_id) for o in outcomes if isinstance(o, InputLine)] == [
        (1, "x"),
        (5, "7"),
        (6, "1.5"),
        (7, "request-7"),
    ]
    assert [o for o in outcomes if isinstance(o, LineError)] == [
        LineError(3, "duplicate_custom_id", "custom_id 'x' is already used (first on line 1)", "x"),
        LineError(4, "invalid_request", "custom_id: string expected, found 7", None),
        LineError(8, "duplicate_custom_id", "custom_id 'request-7' is already used (first on line 7)", "request-7"),
        LineError(9, "invalid_request", "id: string expected, found true", None),
        LineError(10, "invalid_request", "custom_id and id are both given; give one of them", None),
    ]


def test_a_bad_line_holds_its_custom_id_too(read: Read) -> None:
    first, second = read('{"custom_id":"x","prompt":1}\n{"custom_id":"x","prompt":"a"}\n')
    assert isinstance(first, LineError)
    assert (first.custom_id, first.code) == ("x", "invalid_request")
    assert isinstance(second, LineError)
    assert second.code == "duplicate_custom_id"


def test_custom_id_takes_any_unicode_up_to_512_bytes(read: Read) -> None:
    longest = "é\u2028\n\0" + "x" * 505
    assert len(longest.encode()) == 512
    [outcome] = read(json.dumps({"custom_id": longest, "prompt": "a"}))
    assert outcome.custom_id == longest
    assert error(read, {"custom_id": longest + "x", "prompt": "a"})[1] == "custom_id: 513 bytes are more than 512"
    assert error(read, {"custom_id": "", "prompt": "a"})[1] == "custom_id: is empty"


@pytest.mark.parametrize(
    ("record", "code", "sentence"),
    [
        (openai(...), "missing_custom_id", "custom_id is missing; every OpenAI Batch line needs one"),
        (openai(7), "invalid_request", "custom_id: string expected, found 7"),
        (openai(method="GET"), "invalid_method", 'method: found "GET", "POST" expected'),
        (openai(method=...), "invalid_method", 'method: is missing, "POST" expected'),
        (
            openai(url="/v1/embeddings"),
            "url_mismatch",
            'url: found "/v1/embeddings", /v1/chat/completions or /v1/completions expected',
        ),
        (openai(url=...), "url_mismatch", "url: is missing, /v1/chat/completions or /v1/completions expected"),
        (openai(body=...), "invalid_request", "body: object expected, found nothing"),
        (openai(body="x"), "invalid_request", "body: object expected, found a string"),
        (openai(body={"prompt": "x"}), "invalid_request", "messages is missing; /v1/chat/completions takes messages"),
        (openai(url="/v1/completions"), "invalid_request", "prompt is missing; /v1/completions takes prompt"),
        (openai(max_tokens=5), "invalid_request", "max_tokens: unknown field (parameters go inside body)"),
        (openai(bodi=5), "invalid_request", "bodi: unknown field; did you mean body? (parameters go inside body)"),
    ],
)
def test_openai_envelope(read: Read, record: dict[str, Any], code: str, sentence: str) -> None:
    assert error(read, record) == (code, sentence)


PROMPT = {"prompt": "x"}
USER = {"role": "user", "content": "x"}


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "w", "arguments": arguments}
    calls = [{"id": "c1", "type": "function", "function": function}]
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": calls}]}


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (PROMPT | {"max_tokens": 0}, "max_tokens: 0 is not at least 1"),
        (PROMPT | {"max_tokens": -1}, "max_tokens: -1 is not at least 1"),
        (PROMPT | {"max_tokens": 1.5}, "max_tokens: integer expected, found 1.5"),
        (PROMPT | {"max_tokens": "100"}, 'max_tokens: integer expected, found "100"'),
        (PROMPT | {"max_tokens": True}, "max_tokens: integer expected, found true"),
        (
            PROMPT | {"max_tokens": 5, "max_completion_tokens": 9},
            "max_tokens and max_completion_tokens differ; give one of them",
        ),
        (PROMPT | {"top_p": 0}, "top_p: 0 is not above 0"),
        (PROMPT | {"top_p": 1.5}, "top_p: 1.5 is not at most 1"),
        (PROMPT | {"seed": 2**64}, "seed: 18446744073709551616 is not below 18446744073709551616"),
        (PROMPT | {"temperature": "hot"}, 'temperature: number expected, found "hot"'),
        (PROMPT | {"temprature": 1}, "temprature: unknown field; did you mean temperature?"),
        (PROMPT | {"label": 1}, "label: unknown field"),
        (PROMPT | {"best_of": 2}, "best_of: is not supported"),
        (PROMPT | {"n": 0}, "n: 0 is not at least 1"),
        (PROMPT | {"n": 129}, "n: 129 is not at most 128"),
        (PROMPT | {"max_seconds": 0}, "max_seconds: 0 is not above 0"),
        (PROMPT | {"max_repetition": 1.5}, "max_repetition: 1.5 is not at most 1"),
        (PROMPT | {"stream": True}, "stream: true is not supported, only false is"),
        (
            PROMPT | {"response_format": {"type": "json_object"}},
            'response_format: "json_object" is not supported, only text is',
        ),
        (
            PROMPT | {"response_format": {"type": "json_schema", "json_schema": {}}},
            'response_format: "json_schema" is not supported, only text is; '
            "response_format.json_schema: is not supported",
        ),
        (PROMPT | {"stop": [""]}, "stop: an empty stop string would match everywhere"),
        (PROMPT | {"stop": ["a", 1]}, "stop[1]: string expected, found 1"),
        (PROMPT | {"stop": ["a"] * 65}, "stop: 65 items are more than 64"),
        (PROMPT | {"logit_bias": {"a": 1}}, "logit_bias: a key is not a token id; token ids map to numbers"),
        (PROMPT | {"max_tokens": 0, "top_p": 0}, "top_p: 0 is not above 0; max_tokens: 0 is not at least 1"),
        ({"prompt": ["a", "b"]}, "prompt: string expected, found an array"),
        ({"temperature": 1}, "messages or prompt is missing"),
        (PROMPT | {"messages": [USER]}, "messages and prompt are both given; give one of them"),
        ({"messages": []}, "messages is empty"),
        ({"messages": "hi"}, 'messages: array expected, found "hi"'),
        ({"messages": ["hi"]}, 'messages[0]: object expected, found "hi"'),
        ({"messages": [{"content": "x"}]}, "messages[0].role is missing"),
        (
            {"messages": [{"role": "user", "content": None}]},
            "messages[0]: content of the user message is missing or null",
        ),
        (
            {"messages": [USER, {"role": "bot", "content": "x"}]},
            'messages[1].role: "bot" is not "system", "developer", "user", "assistant" or "tool"',
        ),
        ({"messages": [USER | {"nam": "x"}]}, "messages[0].nam: unknown field; did you mean name?"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content: part 0 is 'image_url', which is not supported: text parts only",
        ),
        (
            call("[1]"),
            "messages[1].tool_calls[0].function.arguments: object expected, found an array",
        ),
        (
            call("{bad"),
            "messages[1].tool_calls[0].function.arguments: "
            "the string is not JSON: key must be a string at line 1 column 2",
        ),
        ({"messages": [USER], "raw": True}, "raw goes with prompt, not with messages"),
    ],
)
def test_invalid_requests_name_field_found_and_expected(read: Read, record: dict[str, Any], sentence: str) -> None:
    assert error(read, record) == ("invalid_request", sentence)
    if "prompt" not in record:
        assert error(read, openai(body=record)) in [
            ("invalid_request", sentence),
            ("invalid_request", "messages is missing; /v1/chat/completions takes messages"),
        ]


def test_an_empty_prompt_is_for_raw_completions_only(read: Read) -> None:
    assert error(read, {"prompt": ""})[0] == "empty_prompt"
    assert body(read, openai(url="/v1/completions", body={"prompt": ""})) == {"prompt": "", "raw": True}
    assert body(read, {"prompt": "  "}) == {"prompt": "  "}
    assert body(read, {"messages": [{"role": "user", "content": "  "}]})["messages"][0]["content"] == "  "


def test_nul_and_controls_are_text(read: Read) -> None:
    text = "a\0b" + "".join(map(chr, range(1, 32))) + "\x7f\u2028\ufeff"
    assert body(read, {"prompt": text}) == {"prompt": text}


def test_tool_turns_are_kept_and_arguments_become_an_object(read: Read) -> None:
    record = call('{"city":"Rome"}')
    record["messages"].append({"role": "tool", "tool_call_id": "c1", "content": "18C"})
    messages = body(read, record)["messages"]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
    assert messages[2] == {"role": "tool", "tool_call_id": "c1", "content": "18C"}


def test_openai_names_and_nulls(read: Read) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    record = openai(
        body={
            "messages": [{"role": "user", "content": parts}],
            "max_completion_tokens": 9,
            "max_tokens": None,
            "n": None,
            "stop": "END",
            "user": "u",
            "temperature": None,
        }
    )
    assert body(read, record) == {
        "messages": [{"role": "user", "content": "ab"}],
        "max_tokens": 9,
        "stop": ["END"],
        "passthrough": {"user": "u"},
    }


def test_logprobs_of_completions_is_a_number(read: Read) -> None:
    record = openai(url="/v1/completions", body={"prompt": "x", "logprobs": 3})
    assert body(read, record) == {"prompt": "x", "raw": True, "logprobs": True, "top_logprobs": 3}


def test_defaults_stand_where_the_line_says_nothing(read: Read) -> None:
    defaults = {"max_tokens": 50, "temperature": 0.5, "model": "m"}
    assert body(read, {"prompt": "x", "temperature": 0}, defaults=defaults) == {
        "prompt": "x",
        "max_tokens": 50,
        "temperature": 0.0,
        "model": "m",
    }
    assert body(read, {"prompt": "x", "max_completion_tokens": 9}, defaults=defaults)["max_tokens"] == 9
    assert body(read, {"prompt": "x", "max_tokens": None}, defaults=defaults)["max_tokens"] == 50


def test_defaults_out_of_range_are_one_error(read: Read) -> None:
    with pytest.raises(InputError, match=r"^parameters of the batch: max_tokens: 0 is not at least 1$"):
        read('{"prompt":"x"}\n{"prompt":"y"}\n', defaults={"max_tokens": 0})


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
FIELDS = st.sampled_from([*RequestBody.model_fields, *PASSTHROUGH_FIELDS, "max_completion_tokens", "id", "custom_id"])
MESSAGE_FIELDS = st.sampled_from([*ChatMessage.model_fields])
MESSAGES = st.lists(st.dictionaries(MESSAGE_FIELDS, ANY_JSON, max_size=3), max_size=2)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(FIELDS, ANY_JSON, max_size=4), MESSAGES | st.none(), st.booleans())
def test_whatever_a_field_holds_is_a_request_or_a_line_error(record: Any, messages: Any, as_body: bool) -> None:
    if messages is not None:
        record = record | {"messages": messages}
    outcome = request_line(openai(body=record) if as_body else record, 1, {"max_tokens": 5})
    if isinstance(outcome, InputLine):
        assert RequestBody.model_validate_json(outcome.body.model_dump_json()) == outcome.body
    else:
        assert outcome.code in {"invalid_request", "empty_prompt"}
        assert outcome.message


def test_validate_counts_and_tells(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"prompt":"a"}\n\n{"prompt":1}\n{"prompt":"b"}\n')
    told: list[int] = []
    bad = LineError(3, "invalid_request", "prompt: string expected, found 1", "request-3")
    assert validate(Dataset(path), told.append) == Validation(total=3, invalid=1, errors=[bad])
    assert told == [1, 2, 3]


def test_a_long_line_is_an_error_of_that_line(read: Read) -> None:
    long, good = read(b'{"prompt":"' + b"x" * 2000 + b'"}\n{"prompt":"b"}\n', max_line_bytes=1024)
    message = "2013 bytes are more than 1024; the setting max_line_bytes raises the limit"
    assert long == LineError(1, "line_too_long", message, None)
    assert isinstance(good, InputLine)
    assert (good.line, good.custom_id) == (2, "request-2")
