"""What a run says of a request that has finished: a line for people, facts for programs."""

import dataclasses
from typing import Any

import pytest
from recorded_requests import answered, failed

from api.ledger.records import RecordedRequest
from api.schemas import Choice
from cli.progress import Bar, brief

ONE: dict[str, Any] = {"prompt": "p"}
THREE: dict[str, Any] = {"prompt": "p", "n": 3}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def said(row: RecordedRequest, capsys: pytest.CaptureFixture[str]) -> list[str]:
    Bar().finished(row)
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_an_answer_is_told_with_its_rates(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(answered(ONE, text="one\ntwo"), capsys) == [
        "✓ mine 9 tokens, 12.3 tok/s, 1.50 tokens per pass",
        "one two",
    ]
    assert "choices" not in brief(answered(ONE))


def test_choices_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    row = answered(THREE, text="a", further_choices=[Choice(finish_reason="stop")] * 2)
    assert said(row, capsys)[0].startswith("✓ mine 9 tokens in 3 choices, 12.3 tok/s")
    assert brief(row)["choices"] == 3


def test_a_limit_that_a_later_choice_met_is_told_with_the_choices_that_were_begun(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = answered(THREE, text="a", further_choices=[Choice(finish_reason="time_limit")])
    assert said(row, capsys)[0] == (
        "✓ mine 9 tokens in 2 of 3 choices, 12.3 tok/s, 1.50 tokens per pass, cut short: time_limit"
    )


def test_control_characters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    row = dataclasses.replace(answered(ONE, text="a\x1b[2Jb"), custom_id="x\x1b[31m")
    first, second = said(row, capsys)
    assert first.startswith("✓ x␛[31m 9 tokens")
    assert second == "a␛[2Jb"


def test_an_error_is_told_by_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(failed(ONE, "bad", "it cannot be"), capsys) == ["✗ mine failed", "it cannot be"]
