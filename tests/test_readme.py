"""The README holds: its commands parse, its queries run, its tables say what the code says."""

import re
import shlex
import sqlite3
from pathlib import Path

import pytest
import typer

from api.errors import ExitCode
from api.ledger.ledger import Ledger
from api.schemas import RequestBody
from cli.main import app

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def readme_commands() -> list[str]:
    """Every `cidermill ...` of the README's code blocks and inline code."""
    blocks = re.findall(r"```\n(.*?)```", README, re.S)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`(cidermill [^`]+)`", README)
    return [line for line in [*lines, *inline] if line.startswith("cidermill ")]


def readme_queries() -> list[str]:
    (block,) = re.findall(r"```sql\n(.*?)```", README, re.S)
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


def test_every_command_is_named() -> None:
    (section,) = re.findall(r"## Commands\n(.*?)\n\|", README, re.S)
    assert set(re.findall(r"`(\w+)`", section)) == set(COMMANDS)


def test_every_exit_code_is_explained() -> None:
    assert set(exit_code_table()) == {int(code) for code in ExitCode}


def test_every_parameter_is_named() -> None:
    (section,) = re.findall(r"\nParameters: (.*?)\. A value", README, re.S)
    named = set(re.findall(r"`(\w+)`", section)) - {"max_completion_tokens"}
    fixed = {"model", "messages", "prompt", "n", "stream", "response_format", "tool_choice", "passthrough", "raw"}
    assert named == set(RequestBody.model_fields) - fixed
