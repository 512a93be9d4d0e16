"""`show` for people: the question with its parameters, each answer, and how it went."""

import dataclasses
import re
from typing import Any

import pytest
from recorded_requests import answered, failed

from api.ledger.records import RecordedRequest
from api.schemas import Choice
from cli.request_view import print_request, request_row


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def shown(row: RecordedRequest, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines, headings without their rules."""
    print_request(row)
    return [re.sub(r" ─+$", "", line.rstrip()) for line in capsys.readouterr().out.splitlines()]


def test_a_question_is_shown_with_what_was_asked_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "[b]why"}], "max_seconds": 2.5, "top_k": 4}
    lines = shown(answered(body, text="because"), capsys)
    assert lines[:5] == ["mine  completed", "user: [b]why", "{'top_k': 4, 'max_seconds': 2.5}", "answer", "because"]
    assert "'verification': 'chain'" in " ".join(lines)
    assert "'cached_prompt_tokens': 0" in " ".join(lines)


def test_nothing_is_shown_of_parameters_that_nobody_gave(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(answered({"prompt": "why"}), capsys)[:3] == ["mine  completed", "why", "answer"]


def test_every_choice_has_its_number_its_end_and_its_reasoning(capsys: pytest.CaptureFixture[str]) -> None:
    further = [Choice(text="two", reasoning="thought two", finish_reason="length")]
    row = answered({"prompt": "why", "n": 2}, text="one", reasoning="thought one", further_choices=further)
    lines = shown(row, capsys)
    start = lines.index("choice 0  stop")
    assert lines[start : start + 6] == [
        "choice 0  stop", "thought one", "one", "choice 1  length", "thought two", "two"
    ]  # fmt: skip


def test_an_error_stands_in_the_place_of_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(failed({"prompt": "why"}, "bad", "it cannot be"), capsys)
    assert lines[2:4] == ["error  bad", "it cannot be"]
    assert "answer" not in lines


def test_control_characters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    """An escape sequence would clear the screen or set the window's title."""
    row = answered({"prompt": "a\x1b[2Jb"}, text="c\x1b]0;d\x07\x9b2Je\r\nf\tg\x7f", further_choices=[])
    lines = shown(row, capsys)
    assert lines[1] == "a␛[2Jb"
    assert lines[3:5] == ["c␛]0;d␇\ufffd2Je", "f       g␡"]
    custom_id = dataclasses.replace(row, custom_id="x\x1b[31m")
    assert shown(custom_id, capsys)[0] == "x␛[31m  completed"


def test_programs_get_everything() -> None:
    row = request_row(answered({"prompt": "why", "n": 2}, further_choices=[Choice(text="two", token_ids=[7])]))
    assert row["body"] == {"prompt": "why", "n": 2}
    assert row["result"]["further_choices"][0]["token_ids"] == [7]
    assert row["stats"]["verification"] == "chain"
