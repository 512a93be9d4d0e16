import json
from pathlib import Path
from typing import Any

import pytest
from recording_station import MODEL, Station, finished, started

from api.closing import withdraw
from api.dataset.reader import Dataset
from api.errors import InputError, QueueError
from api.queue import attempts
from api.queue.requests import SafeQueue
from api.schemas import Batch, GenerationRequest, RequestCounts
from api.states import BatchState, RequestState
from api.submission import InvalidDataset, Order, register_batch, requeue_missing, submit

MIXED = '{"prompt": "one"}\n{"prompt": "two", "temprature": 1}\n\n{"prompt": "three"}\n'


class PulledPlug(Exception):
    """The end of a process in the middle of a submission."""


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"prompt {n}"}) + "\n" for n in range(3)))
    return path


def put(station: Station, dataset: Dataset, **options: Any) -> Batch:
    told = options.pop("on_progress", None)
    order = Order(**{"dataset": dataset, "model": MODEL, "output_path": Path("out.jsonl"), **options})
    return submit(station.ledger, station.queue, order, told)


def test_a_batch_goes_to_the_ledger_and_to_the_queue(station: Station, prompts: Path) -> None:
    told: list[tuple[str, int]] = []
    batch = put(station, Dataset(prompts, defaults={"max_tokens": 5}), on_progress=lambda *at: told.append(at))
    assert batch == station.ledger.batch(batch.id)
    assert batch.counts == RequestCounts(queued=3)
    assert (batch.input_path, batch.input_sha256) == (str(prompts), Dataset(prompts).sha256())
    assert batch.output_path == str(Path.cwd() / "out.jsonl")
    ids = [f"{batch.id}-{index}" for index in range(3)]
    assert station.waiting() == ids
    assert [request.max_tokens for request in station.ledger.open_requests(batch.id)] == [5, 5, 5]
    expected = [(stage, count) for stage in ("validating", "recording") for count in (1, 2, 3)]
    assert told == [*expected, ("queueing", 3)]


def test_what_a_worker_gets_is_what_was_asked_for(station: Station, prompts: Path) -> None:
    message = {"role": "user", "content": "a\x00b"}
    body = {"messages": [message], "seed": 7, "logit_bias": {"5": 1.5}}
    prompts.write_text(json.dumps(body) + "\n")
    batch = put(station, Dataset(prompts))
    job = SafeQueue(f"{MODEL}:normal", station.redis).fetch_job(f"{batch.id}-0")
    assert job is not None
    (sent,) = job.args
    assert sent == {
        "request_id": f"{batch.id}-0",
        "messages": [message],
        "seed": 7,
        "logit_bias": {"5": 1.5},
    }
    assert GenerationRequest.model_validate(sent).logit_bias == {5: 1.5}


def test_one_bad_line_stops_everything(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_text(MIXED)
    with pytest.raises(InvalidDataset) as refusal:
        put(station, Dataset(path))
    assert [error.line for error in refusal.value.errors] == [2]
    assert refusal.value.total == 3
    assert str(refusal.value) == (
        f"{path}: 1 of 3 requests is invalid, on line 2: temprature: unknown field; did you mean "
        "temperature?; mend it, or leave it out with --skip-invalid"
    )
    assert refusal.value.details == ()
    assert station.ledger.batches() == []
    assert list(station.redis.scan_iter("rq:job:*")) == []


def test_of_many_bad_lines_the_first_are_told_and_all_are_counted_and_handed_on(
    station: Station, tmp_path: Path
) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"prompt": "good"}\n' + "nonsense\n" * 250)
    with pytest.raises(InvalidDataset, match="250 of 251 requests are invalid, the first on line 2: ") as refusal:
        put(station, Dataset(path))
    assert [error.line for error in refusal.value.errors] == list(range(2, 102))
    assert len(refusal.value.details) == 100
    assert refusal.value.untold == 150
    handed_on: list[int] = []
    batch = put(station, Dataset(path), skip_invalid=True, on_invalid=lambda bad: handed_on.extend(b.line for b in bad))
    assert handed_on == list(range(2, 252))
    assert batch.counts.failed == 250


def test_skipped_lines_count_as_failed(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_text(MIXED)
    batch = put(station, Dataset(path), skip_invalid=True)
    assert station.waiting() == [f"{batch.id}-0", f"{batch.id}-2"]
    station.publish(finished(f"{batch.id}-0"), finished(f"{batch.id}-2"))
    station.recorder().step(block_ms=1)
    after = station.ledger.batch(batch.id)
    assert (after.counts.total, after.counts.completed, after.counts.failed) == (3, 2, 1)
    assert after.state is BatchState.COMPLETED
    assert [row.line for row in station.ledger.results(batch.id)] == [1, 2, 4]


def test_a_file_without_a_good_line_is_refused_whatever_is_skipped(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("nonsense\n")
    with pytest.raises(InvalidDataset, match=r"1 of 1 requests is invalid, on line 1: .*; mend it$"):
        put(station, Dataset(path), skip_invalid=True)
    assert station.ledger.batches() == []


def test_a_file_that_changes_while_it_is_read_is_refused(station: Station, prompts: Path) -> None:
    def append(stage: str, count: int) -> None:
        if (stage, count) == ("validating", 3):
            prompts.write_text(prompts.read_text() + '{"prompt": "and one more"}\n')

    with pytest.raises(InputError, match=r"prompts.jsonl changed while it was read"):
        put(station, Dataset(prompts), on_progress=append)
    assert station.ledger.batches() == []


def test_an_output_name_that_is_not_utf8_is_refused(station: Station, prompts: Path) -> None:
    with pytest.raises(InputError, match="is not valid UTF-8"):
        put(station, Dataset(prompts), output_path=Path("caf\udce9.jsonl"))


@pytest.mark.faults
def test_redis_dies_after_the_ledger_has_the_batch(station: Station, prompts: Path) -> None:
    def kill(stage: str, count: int) -> None:
        if (stage, count) == ("recording", 3):
            station.kill_server()

    with pytest.raises(QueueError) as failure:
        put(station, Dataset(prompts), on_progress=kill)
    (batch,) = station.ledger.batches()
    assert batch.id in str(failure.value)
    assert str(failure.value).endswith(f"run: cidermill resume {batch.id}")
    assert batch.counts == RequestCounts(queued=3)

    station.start_server()
    assert requeue_missing(station.ledger, station.queue, batch.id) == 3
    assert station.waiting() == [f"{batch.id}-{index}" for index in range(3)]


@pytest.mark.parametrize(("stage", "count", "missing"), [("recording", 1500, 1500), ("queueing", 1000, 500)])
def test_a_crash_after_the_ledger_has_the_batch_is_repaired(
    station: Station, tmp_path: Path, stage: str, count: int, missing: int
) -> None:
    """The process ends right after the commit, or between two chunks of the queue."""
    path = tmp_path / "long.txt"
    path.write_text("".join(f"prompt {n}\n" for n in range(1500)))

    def crash(*at: object) -> None:
        if at == ("queueing", 1000):
            raise PulledPlug

    if stage == "recording":
        batch_id = register_batch(station.ledger, Order(Dataset(path), MODEL)).id
    else:
        with pytest.raises(PulledPlug):
            put(station, Dataset(path), on_progress=crash)
        batch_id = station.ledger.resolve("latest")
    assert len(station.waiting()) == 1500 - missing
    told: list[tuple[str, int]] = []
    assert requeue_missing(station.ledger, station.queue, batch_id, lambda *at: told.append(at)) == missing
    assert station.waiting() == [f"{batch_id}-{index}" for index in range(1500)]
    assert told == [("queueing", 1000), ("queueing", 1500)]
    assert requeue_missing(station.ledger, station.queue, batch_id) == 0
    assert len(station.waiting()) == 1500


def test_a_crash_before_the_commit_leaves_nothing(station: Station, prompts: Path) -> None:
    def crash(*at: object) -> None:
        if at == ("recording", 2):
            raise PulledPlug

    with pytest.raises(PulledPlug):
        put(station, Dataset(prompts), on_progress=crash)
    assert station.ledger.batches() == []
    assert station.waiting() == []


def test_after_redis_lost_everything_only_the_unfinished_goes_back(station: Station, prompts: Path) -> None:
    batch = put(station, Dataset(prompts))
    ids = [f"{batch.id}-{index}" for index in range(3)]
    station.publish(started(ids[0]), finished(ids[0]), started(ids[1]))
    station.recorder().step(block_ms=1)
    station.redis.flushall()
    assert requeue_missing(station.ledger, station.queue, batch.id) == 2
    assert station.waiting() == ids[1:]
    assert station.ledger.batch(batch.id).counts == RequestCounts(queued=2, completed=1)


def test_a_request_that_redis_still_has_is_left_alone(station: Station, prompts: Path) -> None:
    batch = put(station, Dataset(prompts))
    station.publish(started(f"{batch.id}-1"))
    station.recorder().step(block_ms=1)
    assert requeue_missing(station.ledger, station.queue, batch.id) == 0
    assert station.ledger.batch(batch.id).counts == RequestCounts(queued=2, running=1)


def test_a_result_that_waits_to_be_recorded_is_not_generated_again(station: Station, prompts: Path) -> None:
    batch = put(station, Dataset(prompts))
    ids = [f"{batch.id}-{index}" for index in range(3)]
    station.queue.forget(ids)
    station.publish(started(ids[0]), finished(ids[0]), started(ids[1]))
    assert requeue_missing(station.ledger, station.queue, batch.id) == 2
    assert station.waiting() == ids[1:]


def test_a_result_recorded_in_the_meantime_is_not_generated_again(
    station: Station, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = put(station, Dataset(prompts))
    ids = [f"{batch.id}-{index}" for index in range(3)]
    station.queue.forget(ids)

    def record_and_look(seen: list[str]) -> set[str]:
        station.publish(finished(ids[2]))
        station.recorder().step(block_ms=1)
        return set()

    monkeypatch.setattr(station.queue, "live", record_and_look)
    monkeypatch.setattr(station.queue, "enqueue", lambda requests, **_: len(requests))
    assert requeue_missing(station.ledger, station.queue, batch.id) == 2
    assert station.ledger.request(ids[2]).state is RequestState.COMPLETED


def test_the_skipped_lines_are_told(station: Station, tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_text(MIXED)
    told: list[int] = []
    put(station, Dataset(path), skip_invalid=True, on_invalid=lambda errors: told.extend(e.line for e in errors))
    assert told == [2]


def test_what_killed_its_workers_is_not_put_back(station: Station, prompts: Path) -> None:
    batch = put(station, Dataset(prompts))
    attempts.note_lost(station.redis, f"{batch.id}-1", "mac-1")
    station.fail_in_redis(f"{batch.id}-1")
    assert requeue_missing(station.ledger, station.queue, batch.id) == 0
    assert station.ledger.request(f"{batch.id}-1").state is RequestState.FAILED
    assert station.waiting() == [f"{batch.id}-0", f"{batch.id}-2"]


def test_a_cancelled_batch_is_not_put_back(station: Station, prompts: Path) -> None:
    batch = put(station, Dataset(prompts))
    withdraw(station.queue, batch.id, station.ledger.cancel(batch.id))
    assert station.waiting() == []
    assert requeue_missing(station.ledger, station.queue, batch.id) == 0
    assert station.waiting() == []


def test_the_same_command_finds_its_batch(station: Station, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prompts.parent)
    dataset = Dataset(Path(prompts.name), defaults={"temperature": 0.5, "max_tokens": 9})
    batch = put(station, dataset, output_path=Path("out.jsonl"))

    def found(dataset: Dataset, model: str = MODEL, output: Path | None = Path("out.jsonl")) -> str | None:
        unfinished = station.ledger.find_unfinished(Order(dataset, model, output_path=output).fingerprint())
        return None if unfinished is None else unfinished.id

    reordered = {"max_tokens": 9, "temperature": 0.5}
    assert found(Dataset(prompts, defaults=reordered), output=prompts.parent / "out.jsonl") == batch.id
    assert found(Dataset(prompts, defaults={"max_tokens": 10, "temperature": 0.5})) is None
    assert found(dataset, model="other") is None
    assert found(dataset, output=None) is None
    assert found(dataset, output=Path("other.jsonl")) is None
    prompts.write_text(prompts.read_text() + '{"prompt": "x"}\n')
    assert found(dataset) is None
