"""The README holds: its commands parse, its queries run, its tables say what the code says."""

import re
import shlex
import sqlite3
from pathlib import Path
from typing import get_args

import pytest
import typer

from api.choices import Format
from api.dataset.output_row import COLUMNS, json_row
from api.errors import ExitCode
from api.ledger.ledger import Ledger
from api.ledger.records import RecordedRequest
from api.schemas import FinishReason, GenerationResult, JobStats, RequestBody, ResolvedValue
from api.settings import load_settings
from api.states import RequestState
from cli.main import app

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def blocks(language: str) -> list[str]:
    """The code blocks of the README that are marked so."""
    return [code for mark, code in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.S | re.M) if mark == language]


def readme_commands() -> list[str]:
    """Every `cidermill ...` of the README's code blocks and inline code."""
    lines = [line.partition("#")[0].strip() for block in blocks("") for line in block.splitlines()]
    inline = re.findall(r"`(cidermill [^`]+)`", README)
    return [line for line in [*lines, *inline] if line.startswith("cidermill ")]


def readme_queries() -> list[str]:
    (block,) = blocks("sql")
    return [query for query in block.split(";") if query.strip()]


def exit_code_table() -> dict[int, str]:
    return {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.+?) \|$", README, re.M)}


def test_there_are_commands_and_queries_to_check() -> None:
    assert len(readme_commands()) >= 8
    assert len(readme_queries()) == 3


@pytest.mark.parametrize("line", readme_commands())
def test_a_command_parses(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    command = COMMANDS[name]
    command.make_context(name, arguments, resilient_parsing=False)


@pytest.mark.parametrize("query", readme_queries())
def test_a_query_runs_on_a_ledger(query: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    Ledger.open(path).close()
    with sqlite3.connect(path) as connection:
        assert connection.execute(query).fetchall() == []


def test_the_example_configuration_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks("toml")
    (tmp_path / "config.toml").write_text(example, "utf-8")
    monkeypatch.setenv("CIDERMILL_CONFIG", str(tmp_path / "config.toml"))
    profile = load_settings().profile("reasoning")
    assert (profile.temperature, profile.thinking) == (1.0, True)
    assert all(f"--profile {name}" in README for name in load_settings().profiles)


def test_every_source_of_a_sampling_value_is_named() -> None:
    (table,) = re.findall(r"\| recorded as \|\n\|[- |]+\|\n(.*?)\n\n", README, re.S)
    named = re.findall(r"`(\w+)` \|$", table, re.M)
    assert named == list(get_args(ResolvedValue.model_fields["source"].annotation))


def test_every_command_is_named() -> None:
    (section,) = re.findall(r"## Commands\n(.*?)\n\|", README, re.S)
    assert set(re.findall(r"`(\w[\w-]*)`", section)) == set(COMMANDS)


def test_every_exit_code_is_explained() -> None:
    assert set(exit_code_table()) == {int(code) for code in ExitCode}


def test_every_finish_reason_is_explained() -> None:
    (table,) = re.findall(r"\| finish reason \|.*?\n\n", README, re.S)
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(get_args(FinishReason))


def test_every_format_is_explained() -> None:
    (table,) = re.findall(r"\| `--format` \|.*?\n\n", README, re.S)
    assert set(re.findall(r"`(\w+)`(?=.* \|.* \|$)", table, re.M)) == set(get_args(Format))


def named_after(words: str) -> list[str]:
    """What a paragraph lists up to its first full stop."""
    (paragraph,) = re.findall(rf"\n{words}: (.*?)\.\s", README, re.S)
    return re.findall(r"`(\w+)`", paragraph)


def test_the_columns_of_tables_are_listed_in_their_order() -> None:
    assert named_after("Columns of `csv` and `parquet`") == list(COLUMNS)


def test_every_field_of_jsonl_is_listed() -> None:
    request = RequestBody(prompt="p", n=2)
    result = GenerationResult(request_id="batch_1-0", reasoning="r", matched_stop="s", notes=["n"])
    facts = dict.fromkeys(("worker", "queued_at", "started_at", "finished_at", "stats"))
    identity = {
        "request_id": "batch_1-0",
        "batch_id": "batch_1",
        "index": 0,
        "custom_id": "c",
        "line": 1,
        "attempts": 1,
    }
    row = RecordedRequest(**identity, **facts, state=RequestState.COMPLETED, body=request, result=result)
    assert set(named_after("Fields of `jsonl`")) - {"n"} == set(json_row(row))


def test_the_statistics_that_are_explained_exist() -> None:
    (section,) = re.findall(r"`cidermill stats latest` shows the sums\.(.*?)\n\n", README, re.S)
    named = set(re.findall(r"`(\w+)`", section)) - {"further_choices"}
    assert {"repetition", "longest_repeat", "acceptance_collapsed_at"} <= named <= set(JobStats.model_fields)


def test_every_parameter_is_named() -> None:
    (section,) = re.findall(r"\nParameters: (.*?)\. A value", README, re.S)
    named = set(re.findall(r"`(\w+)`", section)) - {"max_completion_tokens"}
    fixed = {"model", "messages", "prompt", "stream", "response_format", "tool_choice", "passthrough", "raw"}
    assert named == set(RequestBody.model_fields) - fixed - {"profile"}
