"""A real server, a real ledger and what stands between them."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from api.dataset.request_line import InputLine
from api.identity import batch_of, new_batch_id
from api.ledger.ledger import Ledger
from api.queue.connection import connect
from api.queue.requests import RequestQueue, SafeQueue
from api.queue.results import GROUP, RESULTS_STREAM, ResultsReader, publish
from api.queue.server import PrivateServer
from api.recorder import Recorder
from api.schemas import Batch, GenerationResult, RequestBody, RequestError, RequestEvent

MODEL = "smollm2"


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def started(request_id: str, *, worker: str = "mac-1", attempt: int = 1) -> RequestEvent:
    return RequestEvent(kind="started", request_id=request_id, worker=worker, attempt=attempt, at=time.time())


def finished(request_id: str, text: str = "answer", *, worker: str = "mac-1", failed: bool = False) -> RequestEvent:
    error = RequestError(code="context_length_exceeded", message="too long") if failed else None
    result = GenerationResult(request_id=request_id, text=text, finish_reason=None if failed else "stop", error=error)
    return RequestEvent(kind="finished", request_id=request_id, worker=worker, attempt=1, at=time.time(), result=result)


@contextmanager
def running(recorder: Recorder) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=recorder.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


class Station:
    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.ledger = Ledger.open(self.data_dir / "ledger.sqlite3")
        self.start_server()

    def start_server(self) -> None:
        self.server = PrivateServer.start(self.data_dir)
        self.redis: Redis = connect(self.server.url, patience_seconds=0.2)
        self.queue = RequestQueue(self.redis, max_attempts=2, request_timeout_seconds=60, settling_seconds=0)

    def happened(self, request_id: str) -> list[str]:
        """The kinds of the request's events."""
        entries = self.ledger.history(batch_of(request_id), request_ids=[request_id], after=0)
        return [entry.kind for entry in entries]

    def kill_server(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        wait_until(lambda: not self.server.alive(), "the server's death")

    def stop(self) -> None:
        if self.server.alive():
            self.server.stop()
        self.ledger.close()

    def reader(self, consumer: str = "test") -> ResultsReader:
        return ResultsReader(self.redis, consumer)

    def recorder(self, *, consumer: str = "test", on_finished: Callable[[str], None] | None = None) -> Recorder:
        return Recorder(self.ledger, self.queue, self.reader(consumer), on_finished=on_finished)

    def publish(self, *events: RequestEvent) -> None:
        for event in events:
            publish(self.redis, event)

    def on_stream(self) -> int:
        return int(self.redis.xlen(RESULTS_STREAM))

    def unacknowledged(self) -> int:
        return int(self.redis.xpending(RESULTS_STREAM, GROUP)["pending"])

    def waiting(self) -> list[str]:
        return list(SafeQueue(f"{MODEL}:normal", self.redis).get_job_ids())

    def fail_in_redis(self, request_id: str) -> None:
        """Do what RQ does with a request that lost its last worker."""
        queue = SafeQueue(f"{MODEL}:normal", self.redis)
        job = queue.fetch_job(request_id)
        assert job is not None
        queue.remove(job)
        job.set_status("failed")
        queue.failed_job_registry.add(job)

    def enter(self, count: int, *, expires_at: float | None = None, ledger: Ledger | None = None) -> Batch:
        """A batch in the ledger, or in another one; nothing of it in Redis."""
        return (ledger or self.ledger).create_batch(
            batch_id=new_batch_id(),
            model=MODEL,
            priority="normal",
            input_path="in.jsonl",
            input_sha256="00",
            fingerprint="f",
            output_path=None,
            output_format="jsonl",
            lines=[InputLine(n + 1, f"c{n}", RequestBody(prompt=f"prompt {n}")) for n in range(count)],
            expires_at=expires_at,
        )
