"""`bench` compares speculative with plain decoding, sweeps budgets, and leaves a verdict."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from mill import Mill, MillAt, Row, json_lines

from api.errors import ExitCode, InputError
from api.schemas import JobStats
from cli import comparison_view
from cli.commands import tuning
from cli.comparison_view import cells, phases, resources, texts
from cli.prompts import measured_prompts, shipped_prompts
from worker.engine.comparison import PLAIN, SPECULATIVE, Measurement, summarise
from worker.engine.kernel_set import STOCK
from worker.engine.plain_text import Parity

PROMPTS = [
    {"custom_id": "code-a", "prompt": "one two one two one two one two"},
    {"custom_id": "open-b", "messages": [{"role": "user", "content": "Say something."}], "temperature": 0.9},
]


@pytest.fixture(scope="module")
def measured(mill_at: MillAt, profiles: Path) -> tuple[Mill, list[Row]]:
    """A mill in which `bench` has run, and its JSON lines."""
    mill = mill_at(profiles)
    done = mill.run("bench", "--prompts", mill.input(PROMPTS), "--max-tokens", 12, "--runs", 2)
    assert done.returncode == 0, done.stderr
    return mill, json_lines(done.stdout)


def of(rows: list[Row], event: str) -> list[Row]:
    return [row for row in rows if row["event"] == event]


def test_it_says_what_was_measured_where(measured: tuple[Mill, list[Row]]) -> None:
    mill, rows = measured
    (begin,) = of(rows, "begin")
    assert rows[0] is begin
    assert (begin["model"], begin["drafter"], begin["verification"]) == (mill.model, "suffix", "tree")
    assert (begin["prompts"], begin["runs"]) == (2, 2)
    assert begin["chip"]


def test_every_run_is_there(measured: tuple[Mill, list[Row]]) -> None:
    _, rows = measured
    found = of(rows, "measured")
    assert len(found) == 2 * 2 * 2
    assert {(row["prompt"], row["kind"]) for row in found} == {("code-a", "code"), ("open-b", "open")}
    for prompt in ("code-a", "open-b"):
        # Greedy, although a line asks for a temperature: one text, whatever run and configuration.
        assert len({row["sha256"] for row in found if row["prompt"] == prompt}) == 1
    assert all(row["parity"] == "same" for row in found)
    plain = [row for row in found if row["configuration"] == PLAIN]
    assert all(row["stats"]["drafted_tokens"] == 0 and row["stats"]["drafter"] == "none" for row in plain)
    assert all(row["completion_tokens"] == 12 for row in found)


def test_summaries_are_per_kind_and_over_all(measured: tuple[Mill, list[Row]]) -> None:
    _, rows = measured
    found = of(rows, "summary")
    names = [(row["kind"], row["configuration"]) for row in found]
    assert names == [(kind, name) for kind in ("code", "open", "all") for name in (PLAIN, SPECULATIVE)]
    by_name = {(row["kind"], row["configuration"]): row for row in found}
    runs = {
        number: [row for row in of(rows, "measured") if row["configuration"] == PLAIN and row["run"] == number]
        for number in (1, 2)
    }
    rates = [
        sum(row["completion_tokens"] - 1 for row in group)
        / sum(row["stats"]["wall_ms"] - row["stats"]["ttft_ms"] for row in group)
        * 1000
        for group in runs.values()
    ]
    assert by_name["all", PLAIN]["runs"] == pytest.approx(rates)
    assert by_name["all", PLAIN]["decode_tps"] == pytest.approx(sum(rates) / 2)
    assert by_name["all", PLAIN]["ratio"] == 1


def test_the_verdict_is_kept(measured: tuple[Mill, list[Row]]) -> None:
    mill, rows = measured
    (verdict,) = of(rows, "verdict")
    (speculative,) = [row for row in of(rows, "summary") if (row["kind"], row["configuration"]) == ("all", SPECULATIVE)]
    assert verdict["ratio"] == speculative["ratio"]
    assert verdict["threshold"] == 1.15
    assert verdict["adopted"] == (verdict["ratio"] >= 1.15)
    (file,) = (mill.data_dir / "adoptions").glob("*.json")
    kept = json.loads(file.read_text())
    assert (kept["ratio"], kept["adopted"]) == (verdict["ratio"], verdict["adopted"])


def test_a_worker_goes_by_the_verdict_when_told_to(measured: tuple[Mill, list[Row]]) -> None:
    mill, _ = measured
    (file,) = (mill.data_dir / "adoptions").glob("*.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "ratio": 0.5}))
    line = {"prompt": "one two one two one two", "max_tokens": 6}
    assert mill.run("run", mill.input([line], "run.jsonl"), env={"CIDERMILL_ADOPT": "measured"}).returncode == 0
    assert [row["drafter"] for row in mill.requests()] == ["none"]
    log = (mill.data_dir / "logs" / "worker.log").read_text("utf-8")
    assert "decoding plainly, without drafter suffix: 0.50 times the rate of plain decoding: not adopted" in log


def test_a_sweep_compares_fixed_numbers_of_drafted_tokens_and_keeps_no_verdict(mill_at: MillAt, profiles: Path) -> None:
    mill = mill_at(profiles)
    done = mill.run("bench", "--prompts", mill.input(PROMPTS[:1]), "--max-tokens", 12, "--runs", 1, "--sweep", "4,1,4")
    assert done.returncode == 0, done.stderr
    rows = json_lines(done.stdout)
    assert [(row["kind"], row["configuration"]) for row in of(rows, "summary")] == [
        ("all", name) for name in (PLAIN, "1", "4", SPECULATIVE)
    ]
    budgets = {row["configuration"]: row["stats"]["budgets"] for row in of(rows, "measured")}
    assert max(map(int, budgets["1"])) == 2
    assert max(map(int, budgets["4"])) <= 5
    assert set(budgets[PLAIN]) == {"1"}
    assert of(rows, "verdict") == []
    assert not (mill.data_dir / "adoptions").exists()


@pytest.mark.parametrize("sweep", ["", "1,", "two", "0", "32", "-1"])
def test_a_sweep_that_cannot_be_is_refused(mill: Mill, sweep: str) -> None:
    done = mill.run("bench", "--sweep", sweep)
    assert done.returncode == 2
    assert "no list of numbers from 1 to 31" in " ".join(done.stderr.replace("│", " ").split())


def test_without_a_drafter_there_is_nothing_to_compare(working_mill: Mill) -> None:
    done = working_mill.run("bench", "--drafter", "none")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is nothing to compare" in done.stderr


# Texts that differ. Ours do not, so the measurements are made by hand.


def made(name: str, parity: Parity, *, decode_ms: float = 1000.0) -> Measurement:
    stats = JobStats(wall_ms=500.0 + decode_ms, ttft_ms=500.0, first_pass_tokens=1, decode_tps=10.0, passes=11)
    return Measurement(name, "a", "code", 1, stats, 11, "", parity)


class TheEngine:
    """What concluding asks of an engine."""

    def __init__(self, data_dir: Path) -> None:
        self.options = type("Options", (), {"data_dir": data_dir, "drafter": "auto"})
        self.drafter_key = "suffix"
        self.target = type("Target", (), {"spec": "m", "identity": "x", "kernels": STOCK})


@pytest.mark.parametrize(("parity", "adopted"), [("same", True), ("near tie", True), ("different", False)])
def test_texts_that_differ_end_in_their_own_exit_code_and_are_not_adopted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parity: Parity, adopted: bool
) -> None:
    found = [made(PLAIN, "same"), made(SPECULATIVE, parity, decode_ms=500.0)]
    engine: Any = TheEngine(tmp_path)
    if adopted:
        tuning._conclude(engine, found, threshold=1.15)
    else:
        with pytest.raises(typer.Exit) as ended:
            tuning._conclude(engine, found, threshold=1.15)
        assert ended.value.exit_code == ExitCode.TEXTS_DIFFER
    (verdict,) = of(json_lines(capsys.readouterr().out), "verdict")
    assert (verdict["ratio"], verdict["adopted"]) == (2.0, adopted)


def test_a_plain_engine_whose_text_differs_is_a_fault_too(tmp_path: Path) -> None:
    engine: Any = TheEngine(tmp_path)
    with pytest.raises(typer.Exit) as ended:
        tuning._conclude(engine, [made(PLAIN, "different"), made(SPECULATIVE, "same")], threshold=None)
    assert ended.value.exit_code == ExitCode.TEXTS_DIFFER


# What people see.


def test_the_cells_of_a_row() -> None:
    _, fast = summarise([made(PLAIN, "same"), made(SPECULATIVE, "near tie", decode_ms=500.0)])
    shown = cells(fast)
    assert (shown["kind"], shown["configuration"], shown["rate"], shown["ratio"]) == (
        "all (1)",
        SPECULATIVE,
        "20.0",
        "2.00",
    )
    assert (shown["acceptance"], shown["tokens_per_pass"], shown["texts"]) == ("-", "1.00", "0/1, 1 near ties")
    assert resources(fast).startswith("speculative: first token 0.50 s, memory 0 MB")


def test_parity_and_phases_in_words() -> None:
    assert texts({"same": 4, "near tie": 0, "different": 1}) == "4/5"
    assert phases({"prefill": 100.0, "draft": 1.0, "verify": 899.0}) == "prefill 10%, verify 90%"
    assert phases({}) == ""


def test_people_get_a_table_and_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(comparison_view, "piped", lambda: False)
    monkeypatch.setattr("cli.output.piped", lambda: False)
    monkeypatch.setenv("COLUMNS", "200")
    engine: Any = TheEngine(tmp_path)
    tuning._conclude(engine, [made(PLAIN, "same"), made(SPECULATIVE, "same", decode_ms=500.0)], threshold=1.15)
    shown = capsys.readouterr().out
    assert "drafter auto: 2.00 times the rate of plain decoding: adopted (it takes 1.15 times" in shown
    assert any(line.split()[:4] == ["all", "(1)", "speculative", "20.0"] for line in shown.splitlines())


# Prompts.


def test_the_prompts_of_a_file_are_measured_greedily_and_without_penalties(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    line = {"custom_id": "code-x", "prompt": "p", "temperature": 1.0, "repetition_penalty": 1.2, "stop": "x", "n": 3}
    path.write_text(json.dumps(line) + "\n" + json.dumps({"prompt": "q"}) + "\n")
    first, second = measured_prompts(path, max_tokens=5)
    assert (first.name, first.kind, second.kind) == ("code-x", "code", "request")
    request = first.request
    assert (request.temperature, request.repetition_penalty, request.stop, request.n) == (0, 1, [], 1)
    assert (request.max_tokens, request.prompt) == (5, "p")


def test_a_file_whose_ids_tell_no_kinds_apart_has_one(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"custom_id": f"{n}f-x", "prompt": "p"}) + "\n" for n in range(7)))
    assert {prompt.kind for prompt in measured_prompts(path, max_tokens=5)} == {""}


def test_a_file_with_a_bad_line_raises(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": 5}\n')
    with pytest.raises(InputError, match="line 1"):
        measured_prompts(path, max_tokens=5)
    assert shipped_prompts(max_tokens=5)
