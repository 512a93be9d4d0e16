"""What bench/queue_scale.py measures, each function in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.connection import AbstractConnection
from sqlalchemy import text

from api import closing
from api.dataset.reader import Dataset
from api.dataset.request_line import InputLine
from api.dataset.writer import write_results
from api.identity import new_batch_id, request_id
from api.ledger import tallies
from api.ledger.connection import writing
from api.ledger.ledger import Ledger
from api.ledger.tables import RESULTS
from api.queue.connection import connect
from api.queue.requests import RequestQueue
from api.queue.results import publish
from api.recorder import Recorder, reader_of
from api.schemas import (
    Batch,
    GenerationRequest,
    GenerationResult,
    JobStats,
    Phases,
    RequestBody,
    RequestEvent,
    Usage,
)
from api.settings import Settings
from api.submission import InvalidDataset, Order, register_batch
from api.submission import submit as enter
from worker.process import serve

MODEL = "none"
PROMPT_BYTES = 2000
LEDGER = "ledger.sqlite3"
PUBLISHED_AT_ONCE = 500
WRITER_PAUSE_SECONDS = 0.02


def prompt(number: int) -> str:
    """2 kB that differ from one request to the next."""
    return f"{number} {'Lorem ipsum dolor sit amet. ' * 80}"[:PROMPT_BYTES]


def write_prompts(path: Path, requests: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": prompt(number)}) + "\n" for number in range(requests))


def submit(folder: Path, url: str) -> dict[str, Any]:
    """Seconds of the whole and up to the end of each stage, peak memory, and how long another writer had to wait."""
    queue = queue_at(url)
    order = Order(Dataset(folder / "prompts.jsonl"), MODEL)
    ends: dict[str, float] = {}
    with Ledger.open(folder / LEDGER) as ledger, OtherWriter(folder / LEDGER) as other:
        began = time.perf_counter()
        enter(ledger, queue, order, lambda stage, _: ends.update({stage: time.perf_counter() - began}))
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "stages": ends, "longest_wait": other.longest, "peak_mb": peak_mb()}


def cancel(folder: Path, url: str) -> dict[str, Any]:
    """Seconds that it takes to cancel the batch, in the ledger and in Redis, and peak memory."""
    queue = queue_at(url)
    with Ledger.open(folder / LEDGER) as ledger:
        batch_id = ledger.resolve("latest")
        began = time.perf_counter()
        closing.cancel(ledger, queue, batch_id)
        seconds = time.perf_counter() - began
        assert ledger.batch(batch_id).counts.queued == sum(queue.depth(MODEL).values()) == 0
    return {"seconds": seconds, "peak_mb": peak_mb()}


def refuse(folder: Path, requests: int) -> dict[str, Any]:
    """Seconds until a file of bad lines is refused, and peak memory."""
    path = folder / "other.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"promt": prompt(number)}) + "\n" for number in range(requests))
    with Ledger.open(folder / LEDGER) as ledger:
        began = time.perf_counter()
        with suppress(InvalidDataset):
            register_batch(ledger, Order(Dataset(path), MODEL))
            raise AssertionError("the file was taken")
        return {"seconds": time.perf_counter() - began, "peak_mb": peak_mb()}


class OtherWriter:
    """Writes to the ledger every now and then, as a recorder does. longest: seconds that a transaction took."""

    def __init__(self, path: Path) -> None:
        self.longest = 0.0
        self._path, self._stop = path, threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> OtherWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        with Ledger.open(self._path) as ledger:
            while not self._stop.wait(WRITER_PAUSE_SECONDS):
                began = time.perf_counter()
                ledger.record([])
                self.longest = max(self.longest, time.perf_counter() - began)


@dataclass(frozen=True)
class NoDescription:
    model: str = MODEL
    chip: str = ""
    drafter: str = "none"
    verification: str = "plain"
    kernels: str = ""


@dataclass
class NoEngine:
    """An engine that answers at once, and ends its process with SIGTERM after `requests`.

    times: start and end of each. processor_times: of the process by then. round_trips: to Redis, by then.
    """

    requests: int
    times: list[tuple[float, float]] = field(default_factory=list)
    processor_times: list[float] = field(default_factory=list)
    round_trips: list[int] = field(default_factory=list)
    description: NoDescription = field(default_factory=NoDescription)

    def generate(
        self,
        request: GenerationRequest,
        *,
        on_tokens: Callable[[str, int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> tuple[GenerationResult, JobStats]:
        began = time.perf_counter()
        answer = finished(request.request_id)
        assert answer.result is not None
        assert answer.stats is not None
        self.times.append((began, time.perf_counter()))
        self.processor_times.append(time.process_time())
        self.round_trips.append(RoundTrips.made)
        if len(self.times) == self.requests:
            signal.raise_signal(signal.SIGTERM)
        return answer.result, answer.stats

    def upkeep(self) -> None:
        pass

    def close(self) -> None:
        pass


def overhead(folder: Path, url: str, requests: int) -> dict[str, Any]:
    """Milliseconds from the end of one request to the start of the next one, of a worker whose queue is full."""
    batch_id = new_batch_id()
    entries = [GenerationRequest(request_id=request_id(batch_id, n), prompt=prompt(n)) for n in range(requests)]
    queue_at(url).enqueue(entries, model=MODEL, priority="normal")
    engine = NoEngine(requests)
    RoundTrips.count()
    serve(Settings(redis_url=url, data_dir=folder, model=MODEL), lambda: engine)
    gaps = sorted(1000 * (start - end) for (_, end), (start, _) in zip(engine.times, engine.times[1:], strict=False))
    processor, trips = engine.processor_times, engine.round_trips
    return {
        "median": statistics.median(gaps),
        "p95": gaps[int(0.95 * len(gaps))],
        "max": gaps[-1],
        "processor_ms": 1000 * (processor[-1] - processor[0]) / (requests - 1),
        "round_trips": (trips[-1] - trips[0]) / (requests - 1),
    }


class RoundTrips:
    """Counts how often this thread sends something to Redis, and then waits for the answer."""

    made = 0

    @classmethod
    def count(cls) -> None:
        send, thread = AbstractConnection.send_packed_command, threading.get_ident()

        def counted(self: AbstractConnection, *arguments: Any, **named: Any) -> Any:
            cls.made += threading.get_ident() == thread
            return send(self, *arguments, **named)

        AbstractConnection.send_packed_command = counted  # type: ignore[method-assign]


def record(folder: Path, url: str, requests: int) -> dict[str, Any]:
    """Results a second that a recorder takes home from a full stream."""
    connection = connect(url)
    with Ledger.open(folder / LEDGER) as ledger:
        batch = entered(ledger, requests)
        for first in range(0, requests, PUBLISHED_AT_ONCE):
            with connection.pipeline() as pipeline:
                for number in range(first, min(requests, first + PUBLISHED_AT_ONCE)):
                    publish(pipeline, finished(request_id(batch.id, number)))
                pipeline.execute()
        recorder = Recorder(ledger, queue_at(url), reader_of(ledger, connection, "bench"))
        began = time.perf_counter()
        while recorder.step(block_ms=1):
            pass
        seconds = time.perf_counter() - began
        assert ledger.batch(batch.id).counts.completed == requests
    return {"rate": requests / seconds}


def ask(folder: Path, query: str) -> dict[str, Any]:
    """Milliseconds of one question to the ledger: the second of two, which finds its pages in memory."""
    with Ledger.open(folder / LEDGER) as ledger:
        batch_id = ledger.resolve("latest")
        questions: dict[str, Callable[[], object]] = {
            "batches": lambda: ledger.batches(),
            "batch": lambda: ledger.batch(batch_id),
            "stats": lambda: ledger.stats(batch_id),
        }
        ask_it = questions[query]
        ask_it()
        began = time.perf_counter()
        ask_it()
        return {"ms": 1000 * (time.perf_counter() - began), "peak_mb": peak_mb()}


def command(folder: Path, name: str) -> dict[str, Any]:
    """Milliseconds of processor time of a command, the second one of a process, which need not import anything."""
    from cli.main import app

    spent = []
    for _ in range(2):
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            began = time.process_time()
            app([name, "latest", "--data-dir", str(folder)], standalone_mode=False)
            spent.append(1000 * (time.process_time() - began))
    return {"ms": spent[1]}


def process_ms(folder: Path, name: str) -> float:
    """Milliseconds of a whole command, from the start of Python to its end."""
    began = time.perf_counter()
    arguments = [sys.executable, "-m", "cli.main", name, "latest", "--data-dir", str(folder)]
    subprocess.run(arguments, check=True, capture_output=True)
    return 1000 * (time.perf_counter() - began)


def write_answers(folder: Path) -> dict[str, Any]:
    with Ledger.open(folder / LEDGER) as ledger:
        began = time.perf_counter()
        count = write_results(ledger.results(ledger.resolve("latest")), folder / "answers.jsonl", "openai")
        return {"rate": count / (time.perf_counter() - began), "peak_mb": peak_mb()}


def fill(folder: Path, requests: int) -> None:
    """A ledger of one completed batch: one request through the front door, and SQLite copies that."""
    with Ledger.open(folder / LEDGER) as ledger:
        batch = entered(ledger, 1)
        ledger.record([finished(request_id(batch.id, 0))])
        with writing(ledger.engine, ledger.path) as connection:
            for table, own in (
                ("requests", {"id": "'{batch}-' || n", "idx": "n", "line": "n + 1", "custom_id": "'request-' || n"}),
                ("results", {"request_id": "'{batch}-' || n", "ttft_ms": "ttft_ms + n * 7919 % 1000"}),
            ):
                columns = [row[1] for row in connection.execute(text(f"PRAGMA table_info({table})"))]
                values = [own.get(column, column).format(batch=batch.id) for column in columns]
                numbers = (
                    "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :count)"
                )
                copy = f"INSERT INTO {table} {numbers} SELECT {', '.join(values)} FROM {table}, numbers"
                if requests > 1:
                    connection.execute(text(copy), {"count": requests})
            tallies.add(connection, RESULTS.c.request_id != request_id(batch.id, 0))
            connection.execute(text("UPDATE batches SET completed = :count"), {"count": requests})


def entered(ledger: Ledger, requests: int) -> Batch:
    return ledger.create_batch(
        batch_id=new_batch_id(),
        model=MODEL,
        priority="normal",
        input_path="prompts.jsonl",
        input_sha256="",
        fingerprint="",
        output_path=None,
        output_format="openai",
        lines=(InputLine(n + 1, f"request-{n}", RequestBody(prompt=prompt(n))) for n in range(requests)),
    )


def finished(request: str) -> RequestEvent:
    """The answer of a request of usual size: 150 tokens."""
    usage = Usage(prompt_tokens=400, completion_tokens=150)
    result = GenerationResult(
        request_id=request,
        text="An answer of some words. " * 30,
        finish_reason="stop",
        usage=usage,
        token_ids=list(range(1000, 1150)),
    )
    stats = JobStats(
        model=MODEL,
        wall_ms=2000.0,
        ttft_ms=100.0,
        passes=60,
        drafted_tokens=300,
        accepted_tokens=90,
        phases=Phases(prefill=100.0, draft=100.0, verify=1600.0, sample=100.0, commit=50.0, other=50.0),
        budgets={4: 30, 8: 30},
    )
    return RequestEvent(
        kind="finished", request_id=request, worker="bench", attempt=1, at=time.time(), result=result, stats=stats
    )


def queue_at(url: str) -> RequestQueue:
    return RequestQueue(connect(url), max_attempts=2, request_timeout_seconds=600)


def peak_mb() -> float:
    """Of this process. Linux counts the parent's peak as the child's own in what getrusage tells."""
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text("ascii")
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
