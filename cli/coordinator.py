"""The coordinator of one batch: it feeds the queue, records results, and waits until every request is final."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING

from api.errors import LedgerError, StorageError
from cli.interrupt import Interrupted
from cli.options import LOCAL_HEARTBEAT_SECONDS, LOCAL_LEASE_SECONDS
from cli.worker_process import WorkerProcess

if TYPE_CHECKING:
    from redis import Redis

    from api.ledger.ledger import Ledger
    from api.ledger.records import RecordedRequest
    from api.queue.server import PrivateServer
    from api.schemas import Batch, WorkerInfo
    from cli.options import Workspace

TICK_SECONDS = 0.5
STOP_PATIENCE_SECONDS = 30.0


class Coordinator:
    """Redis, a recorder and, on one machine, the server and the worker processes behind them."""

    def __init__(self, workspace: Workspace, model: str, *, local_worker: bool) -> None:
        self._workspace, self._model, self._local_worker = workspace, model, local_worker
        self._finished: list[str] = []
        self._stop = threading.Event()
        self._recorder = threading.Thread(target=self._record, name="recorder", daemon=True)
        self.server: PrivateServer | None = None
        self.worker: WorkerProcess | None = None

    @contextmanager
    def running(self) -> Iterator[Coordinator]:
        """Everything up on entry; on exit the worker has handed back its request, and all is stopped."""
        # A stack: an impatient second Ctrl-C ends one of these early, and the others still have their turn.
        with ExitStack() as down:
            down.callback(self._stop_server)
            self.connection = self._open_redis()
            self.queue = self._workspace.queue(self.connection)
            down.callback(self._stop_recorder)
            down.callback(self._stop_worker)
            if self._local_worker:
                self.worker = self._start_worker()
            self._recorder.start()
            yield self

    def wait(
        self,
        batch_id: str,
        *,
        on_finished: Callable[[RecordedRequest], None],
        on_news: Callable[[str], None],
        on_tick: Callable[[], None],
    ) -> Batch:
        """Wait until the batch is final, keeping the local processes alive; returns it.

        on_finished: each request that becomes final. on_news: what the local processes have to say. Raises Interrupted
        when the worker here was told to end, and no other machine can go on.
        """
        ledger = self._workspace.ledger
        while True:
            self._tell(batch_id, on_finished)
            batch = ledger.batch(batch_id)
            if batch.counts.finished == batch.counts.total:
                # It commits first and tells afterwards: the last requests may be committed and not told yet.
                self._stop_recorder()
                self._tell(batch_id, on_finished)
                return batch
            if self.server and not self.worker:
                raise Interrupted
            for line in self._keep_alive():
                on_news(line)
            on_tick()
            time.sleep(TICK_SECONDS)

    def _tell(self, batch_id: str, on_finished: Callable[[RecordedRequest], None]) -> None:
        """Of this batch's requests. Those of others are recorded as well."""
        while self._finished:
            row = self._workspace.ledger.request(self._finished.pop(0))
            if row.batch_id == batch_id:
                on_finished(row)

    def say_who_is_missing(self, say: Callable[[str], None]) -> None:
        """Say so where no worker serves the model, when Redis tells; one may still come."""
        from redis.exceptions import RedisError

        from api.queue.presence import live_workers
        from cli.fleet_view import no_server

        with suppress(RedisError):
            if why := no_server(self._model, live_workers(self.connection)):
                say(why)

    def busy_worker(self, batch_id: str) -> WorkerInfo | None:
        """A worker that is generating for this batch now, when Redis tells."""
        from redis.exceptions import RedisError

        from api.queue.presence import live_workers

        with suppress(RedisError):
            of_batch = f"{batch_id}-"
            return next((w for w in live_workers(self.connection) if (w.request_id or "").startswith(of_batch)), None)
        return None

    def _open_redis(self) -> Redis:
        if self._workspace.redis_url:
            return self._workspace.connect()
        from api.queue.connection import connect
        from api.queue.server import PrivateServer

        self.server = PrivateServer.start(self._workspace.settings.data_dir)
        return connect(self.server.url)

    def _start_worker(self) -> WorkerProcess:
        settings = self._workspace.settings
        url = self.server.url if self.server else self._workspace.redis_url
        assert url
        worker = WorkerProcess(
            model=self._model,
            redis_url=url,
            data_dir=settings.data_dir,
            config=self._worker_settings(),
        )
        worker.start()
        return worker

    def _stop_worker(self) -> None:
        if self.worker:
            self.worker.stop(STOP_PATIENCE_SECONDS)

    def _stop_recorder(self) -> None:
        self._stop.set()
        if self._recorder.is_alive():
            self._recorder.join(STOP_PATIENCE_SECONDS)

    def _stop_server(self) -> None:
        if self.server:
            self.server.stop()

    def _worker_settings(self) -> dict[str, str]:
        """The settings of this command as the worker's environment, so that both go by the same ones."""
        settings = self._workspace.settings
        shared = {name: str(getattr(settings, name)) for name in _WORKER_SETTINGS}
        if self.server:
            shared["lease_seconds"] = str(min(settings.lease_seconds, LOCAL_LEASE_SECONDS))
            shared["heartbeat_seconds"] = str(min(settings.heartbeat_seconds, LOCAL_HEARTBEAT_SECONDS))
            shared["deaths_in_a_row"] = "0"  # without this machine nobody would go on
        return {f"CIDERMILL_{name.upper()}": value for name, value in shared.items()}

    def _keep_alive(self) -> list[str]:
        """Start again what has died; returns what there is to say."""
        if not self._recorder.is_alive():
            raise LedgerError("recording has stopped on its own, which is a bug; nothing is lost: start it again")
        news = []
        if self.server and not self.server.alive():
            from api.queue.server import PrivateServer

            self.server = PrivateServer.start(self._workspace.settings.data_dir)
            news.append("the private server had died; it is up again with all it held")
        if self.worker:
            news += self.worker.news()
            if self.worker.ended:
                self.worker = None
                others = "" if self.server else "; workers elsewhere go on"
                news.append(f"the worker here was told to end, and has ended{others}")
            elif self.worker.check():
                news.append("the worker had died; a new one starts")
        return news

    def _record(self) -> None:
        from api.ledger.ledger import Ledger
        from api.queue.connection import connect
        from api.recorder import Recorder, reader_of

        url = self.server.url if self.server else self._workspace.redis_url
        assert url
        connection = connect(url)
        ledger: Ledger = Ledger.open(self._workspace.settings.ledger_path)
        reader = reader_of(ledger, connection, consumer="run")
        recorder = Recorder(ledger, self._workspace.queue(connection), reader, on_finished=self._finished.append)
        recorder.run(self._stop)


_WORKER_SETTINGS = (
    "drafter",
    "kernels",
    "default_max_tokens",
    "max_tree_nodes",
    "prefill_chunk",
    "lease_seconds",
    "heartbeat_seconds",
    "max_attempts",
    "deaths_in_a_row",
    "request_timeout_seconds",
)


def is_recorded(workspace: Workspace) -> bool:
    """Whether a process of this machine runs or records in this data directory."""
    import fcntl

    try:
        with (workspace.settings.data_dir / "coordinator.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # somebody holds it, or what it is cannot be told
        return True
    return False


def in_a_fleets_redis(ledger: Ledger) -> dict[str, str]:
    """Open batches that a fleet's Redis has, and its address. A single machine's server listens on a socket."""
    placed = {batch.id: batch.placed_in or "" for batch in ledger.running_batches()}
    return {batch_id: address for batch_id, address in placed.items() if address and not address.startswith("/")}


@contextmanager
def only_one(workspace: Workspace) -> Iterator[None]:
    """The right to write this data directory's ledger; another coordinator is an error that says who holds it."""
    import os

    path = workspace.settings.data_dir / "coordinator.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a+")
    except OSError as error:
        raise StorageError(
            f"data directory {path.parent} cannot be used: {error.strerror}; choose another --data-dir"
        ) from error
    with lock:
        try:
            _take(lock)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise LedgerError(
                f"process {holder} already runs or records in {path.parent}; wait for it, or use another --data-dir"
            ) from error
        lock.seek(0)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _take(lock: IO[str]) -> None:
    """Raises OSError where another process keeps it. `is_recorded` has it too, for a moment."""
    import fcntl

    for seconds in (0.02, 0.2):
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(seconds)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
