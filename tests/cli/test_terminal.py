"""Tables for people on a terminal, JSON lines for programs in a pipe, and nothing bad when the reader leaves."""

import contextlib
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
from mill import CIDERMILL, Mill, MillAt, json_lines

from api.schemas import RequestCounts, WorkerInfo
from cli.commands.batches import _emit_fleet
from cli.progress import Bar

ANSWERED = [{"prompt": "One.", "max_tokens": 3}, {"prompt": "[bold]Two.", "max_tokens": 2, "custom_id": "[red]x"}]
OUTPUT = "[red]out.jsonl"
HEADINGS = ["batch", "state", "model", "finished", "failed", "created"]
STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(mill: Mill, *arguments: object, columns: int = 200) -> tuple[int, str]:
    """Exit code, and what a terminal shows, without colours and cursor movements."""
    ours, theirs = pty.openpty()
    environment = {**mill.environment, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "50"}
    process = subprocess.Popen(
        [*CIDERMILL, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=mill.folder,
        env=environment,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    return process.wait(60), STYLES.sub("", shown.decode("utf-8")).replace("\r\n", "\n").replace("\r", "\n")


@pytest.fixture(scope="module")
def done(mill_at: MillAt, profiles: Path) -> tuple[Mill, str]:
    """A mill in which one run has ended, and what that showed on its terminal."""
    mill = mill_at(profiles)
    code, shown = on_terminal(mill, "run", mill.input(ANSWERED), "-o", OUTPUT)
    assert code == 0, shown
    return mill, shown


def test_a_run_shows_its_answers_and_a_summary(done: tuple[Mill, str]) -> None:
    mill, shown = done
    lines = [line.rstrip() for line in shown.splitlines()]
    for row in mill.requests():
        assert any(line.startswith(f"✓ {row['custom_id']} {row['completion_tokens']} tokens") for line in lines)
        assert f"  {' '.join(row['text'].split())}" in lines
    assert re.search(rf"^ +batch  {mill.batches()[0]['id']} \(completed\)$", shown, re.M)
    assert re.search(r"^ +requests  2 completed$", shown, re.M)
    assert re.search(rf"^ +output  {re.escape(str(mill.folder / OUTPUT))}$", shown, re.M)
    assert '"event"' not in shown


def test_status_is_a_table_on_a_terminal(done: tuple[Mill, str]) -> None:
    mill, _ = done
    code, shown = on_terminal(mill, "status")
    heading, row = [line.split() for line in shown.splitlines()]
    assert code == 0
    assert heading == HEADINGS
    assert row[:2] == [mill.batches()[0]["id"], "completed"]
    assert row[3:5] == ["2/2", "0"]


def test_an_id_is_in_one_piece_on_a_narrow_terminal(done: tuple[Mill, str]) -> None:
    mill, _ = done
    _, shown = on_terminal(mill, "status", columns=80)
    assert mill.batches()[0]["id"] in shown


def test_parquet_is_not_for_a_terminal(done: tuple[Mill, str]) -> None:
    mill, _ = done
    code, shown = on_terminal(mill, "results", "-f", "parquet")
    assert code == 2
    assert "parquet is not for a terminal; give a file: -o FILE" in " ".join(shown.replace("│", " ").split())


def test_the_table_of_workers_says_how_each_verifies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.output.piped", lambda: False)
    monkeypatch.setenv("COLUMNS", "200")
    serving = {"model": "m", "host": "h", "pid": 1, "chip": "M4", "drafter": "suffix", "seen_at": 0.0}
    tree = WorkerInfo(
        **serving, name="one", state="busy", verification="tree", request_id="batch_1-7", tokens=9, completed=3
    )
    plain = WorkerInfo(**serving, name="two", state="idle", verification="plain")
    other = tree.model_copy(update={"name": "three", "model": "another"})
    _emit_fleet({"high": 0, "normal": 5, "low": 0}, [tree, plain, other], "m")
    _, _, heading, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert heading == ["worker", "state", "chip", "drafter", "verification", "request", "tokens", "completed"]
    assert rows == [
        ["one", "busy", "M4", "suffix", "tree", "batch_1-7", "9", "3"],
        ["two", "idle", "M4", "suffix", "plain", "0", "0"],
    ]


def test_status_is_json_lines_in_a_pipe(done: tuple[Mill, str]) -> None:
    mill, _ = done
    (row,) = json_lines(mill.run("status").stdout)
    assert row["id"] == mill.batches()[0]["id"]
    assert row["counts"]["completed"] == 2


def test_show_prints_brackets_as_they_are(done: tuple[Mill, str]) -> None:
    mill, _ = done
    request = mill.requests()[1]
    code, shown = on_terminal(mill, "show", request["id"])
    assert code == 0
    assert "[red]x  completed" in shown
    assert "[bold]Two." in shown
    assert "completion_tokens=2" in shown or "'completion_tokens': 2" in shown


def test_text_of_a_model_that_looks_like_markup_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich raises for a closing tag that was never opened, which would end the run."""
    worker = WorkerInfo(
        name="w",
        model="m",
        state="busy",
        host="h",
        pid=1,
        chip="c",
        drafter="d",
        verification="v",
        seen_at=0.0,
        tail="so\x1b[2J [/INST] and [red]",
    )
    bar = Bar()
    bar.start(RequestCounts(queued=1))
    bar._console.width = 200
    bar.tick(worker)
    bar._console.print(bar._progress.get_renderable())
    assert "“…so␛[2J [/INST] and [red]" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["config"], ["models"], ["stats"]])
def test_other_commands_fit_their_reader(done: tuple[Mill, str], command: list[str]) -> None:
    mill, _ = done
    code, shown = on_terminal(mill, *command)
    piped = mill.run(*command)
    assert code == piped.returncode == 0
    assert not shown.lstrip().startswith("{")
    assert all(isinstance(row, dict) for row in json_lines(piped.stdout))


@pytest.mark.parametrize("command", [["status"], ["results", "latest"], ["run", "in.jsonl", "-o", "again.jsonl"]])
def test_a_reader_that_leaves_is_no_error(done: tuple[Mill, str], command: list[str]) -> None:
    """As `| head` does. A run goes on: its answers go to a file."""
    mill, _ = done
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [*CIDERMILL, *command], stdout=writing, stderr=subprocess.PIPE, cwd=mill.folder, env=mill.environment
    )
    os.close(writing)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert b"Broken" not in said
    if command[0] == "run":
        assert len(json_lines((mill.folder / "again.jsonl").read_text("utf-8"))) == len(ANSWERED)
