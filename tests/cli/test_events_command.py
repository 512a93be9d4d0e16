"""`events`: the history of requests for programs, for people, and as it goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from mill import Mill, json_lines, wait_until
from test_terminal import on_terminal

from api.dataset.request_line import InputLine
from api.identity import new_batch_id
from api.ledger.ledger import Ledger
from api.schemas import GenerationResult, RequestBody, RequestEvent

EVIL = "\x1b]0;owned\x07mac"


@pytest.fixture
def ledger(mill: Mill) -> Iterator[Ledger]:
    with Ledger.open(mill.data_dir / "ledger.sqlite3") as opened:
        yield opened


def enter(ledger: Ledger, count: int = 2) -> str:
    return ledger.create_batch(
        batch_id=new_batch_id(),
        model="m",
        priority="normal",
        input_path=Path("in.jsonl"),
        input_sha256="0",
        fingerprint="f",
        output_path=None,
        output_format="jsonl",
        lines=[InputLine(number + 1, f"row {number}", RequestBody(prompt="secret")) for number in range(count)],
    ).id


def tell(ledger: Ledger, request_id: str, *, worker: str = "mac", at: float = 5.5) -> None:
    result = GenerationResult(request_id=request_id, text="secret", finish_reason="stop")
    common = {"request_id": request_id, "worker": worker, "attempt": 1}
    ledger.record([RequestEvent(kind="started", at=at, **common)])
    ledger.record([RequestEvent(kind="finished", at=at + 1, result=result, **common)])


def test_a_program_gets_json_lines_of_what_it_asks_for(mill: Mill, ledger: Ledger) -> None:
    batch = enter(ledger)
    for index in range(2):
        tell(ledger, f"{batch}-{index}")
    tell(ledger, f"{batch}-0", worker="slow", at=7.0)
    done = mill.run("events", "latest")
    assert done.returncode == 0
    rows = json_lines(done.stdout)
    kinds = ["queued"] * 2 + ["started", "finished"] * 2 + ["started", "late"]
    assert [row["kind"] for row in rows] == kinds
    first = {"request_id": f"{batch}-0", "kind": "started", "at": 5.5, "worker": "mac", "attempt": 1, "detail": None}
    assert rows[2] == first
    assert (rows[0]["worker"], rows[0]["attempt"]) == (None, 0)
    assert "secret" not in done.stdout

    late = json_lines(mill.run("events", batch, "--kind", "late", "--kind", "queued", "--request", "row 0").stdout)
    assert [(row["request_id"], row["kind"], row["worker"]) for row in late] == [
        (f"{batch}-0", "queued", None),
        (f"{batch}-0", "late", "slow"),
    ]
    assert json_lines(mill.run("events", f"{batch}-1").stdout) == [row for row in rows if row["request_id"][-1] == "1"]


def test_events_and_show_know_a_request_by_the_same_words(mill: Mill, ledger: Ledger) -> None:
    batch = enter(ledger)
    for word in ("latest-1", f"{batch[:-2].lower()}-1", f"{batch}-1"):
        (shown,) = json_lines(mill.run("show", word).stdout)
        (queued,) = json_lines(mill.run("events", word).stdout)
        assert (shown["request_id"], queued["request_id"]) == (f"{batch}-1", f"{batch}-1")
    for word, says in (("latest", "give BATCH-INDEX, such as latest-0"), ("latest-9", f"no request {batch}-9 in this")):
        done = mill.run("show", word)
        assert done.returncode == 8
        assert says in done.stderr


def test_what_is_not_there_is_an_error_that_says_so(mill: Mill, ledger: Ledger) -> None:
    batch = enter(ledger)
    for arguments, said in (
        ([f"{batch}-7"], f"no request {batch}-7 in this ledger"),
        (["latest", "--request", "row 9"], "has no request 'row 9', neither as an id nor as a custom_id"),
    ):
        done = mill.run("events", *arguments)
        assert done.returncode == 8
        assert said in done.stderr
    assert mill.run("events", f"{batch}-1", "--request", "row 1").returncode == 2


def test_people_get_a_table_that_obeys_nobody(mill: Mill, ledger: Ledger) -> None:
    tell(ledger, f"{enter(ledger)}-1", worker=EVIL)
    code, shown = on_terminal(mill, "events", "latest-1")
    assert code == 0
    headings, *lines = [line.split() for line in shown.splitlines()]
    assert headings == ["time", "request", "event", "attempt", "worker", "why"]
    assert [line[2:] for line in lines] == [
        ["1", "queued"],
        ["1", "started", "1", "␛]0;owned␇mac"],
        ["1", "finished", "1", "␛]0;owned␇mac", "stop"],
    ]
    assert "\x1b]" not in shown


def test_a_batch_is_followed_to_its_end(mill: Mill, ledger: Ledger) -> None:
    batch = enter(ledger)
    following = mill.start("events", batch, "--follow", "--kind", "queued", "--kind", "finished")
    wait_until(lambda: len(following.stdout.splitlines()) == 2, "the queued requests")
    tell(ledger, f"{batch}-1")
    wait_until(lambda: len(following.stdout.splitlines()) == 3, "the first answer")
    assert following.process.poll() is None
    tell(ledger, f"{batch}-0")
    assert following.wait() == 0
    told = [(row["request_id"], row["kind"]) for row in json_lines(following.stdout)]
    assert told == [(f"{batch}-{index}", kind) for index, kind in ((0, "queued"), (1, "queued"))] + [
        (f"{batch}-1", "finished"),
        (f"{batch}-0", "finished"),
    ]
