"""The worker process that `cidermill run` keeps: started, watched, started again, and stopped with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from api.errors import CidermillError, ExitCode, ModelError

# A worker that dies sooner than this has not got to work: after three of those, it is no use.
EARLY_SECONDS = 20.0
EARLY_DEATHS = 3
# Exit codes that starting again cannot mend.
HOPELESS = frozenset({ExitCode.MODEL_UNUSABLE, ExitCode.USAGE, ExitCode.NOT_FOUND})


class WorkerProcess:
    """One local worker. Its standard input is a pipe: when this process dies, the worker sees the end and stops."""

    def __init__(self, *, model: str, redis_url: str, data_dir: Path, config: dict[str, str]) -> None:
        self._model, self._data_dir = model, data_dir
        # Secrets travel in the environment, never in the argument list.
        self._environment = {
            **os.environ,
            **config,
            "CIDERMILL_REDIS_URL": redis_url,
            "CIDERMILL_DATA_DIR": str(data_dir),
        }
        self.log_path = data_dir / "logs" / "worker.log"
        self._told = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._early_deaths = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "cli.main", "worker", "--model", self._model, "--wait", "--stop-with-parent"]
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C reaches `run` alone, which then stops the worker in good order.
            self._process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        self._started_at = time.monotonic()

    @property
    def ended(self) -> bool:
        """Whether it has ended because it was told to: drained, or with SIGTERM. That is no death."""
        return self._process is not None and self._process.poll() == 0

    def check(self) -> bool:
        """Start a dead worker again; True when it was. Raises what made it die when that will not change."""
        assert self._process
        code = self._process.poll()
        if code is None:
            return False
        if code in HOPELESS:
            raise _worker_error(code, self._last_words())
        early = time.monotonic() - self._started_at < EARLY_SECONDS
        self._early_deaths = self._early_deaths + 1 if early else 0
        if self._early_deaths >= EARLY_DEATHS:
            raise CidermillError(
                f"the worker died {EARLY_DEATHS} times in a row at its start: {self._last_words()}; "
                f"its log is {self.log_path}"
            )
        self.start()
        return True

    def news(self) -> list[str]:
        """Whole lines that the worker has written since the last call."""
        with self.log_path.open("rb") as log:
            log.seek(self._told)
            lines = log.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        self._told += sum(map(len, whole))
        return [line.decode("utf-8", "replace").rstrip() for line in whole]

    def stop(self, patience_seconds: float) -> None:
        """Have it hand back its request at once; kill it when that takes longer than `patience_seconds`.

        The end of its input and the signal are two requests to stop, and the second one means now: whoever stops a run
        waits for it.
        """
        process = self._process
        if process is None or process.poll() is not None:
            return
        assert process.stdin
        process.stdin.close()
        process.terminate()
        try:
            process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Also when a second Ctrl-C cuts the waiting short.
            if process.poll() is None:
                process.kill()
                process.wait()

    def _last_words(self) -> str:
        lines = self.log_path.read_text("utf-8", errors="replace").splitlines()
        said = [line for line in lines[-20:] if line.startswith("cidermill: ")]
        return (said or lines or ["it left no message"])[-1].removeprefix("cidermill: ")


def _worker_error(code: int, words: str) -> CidermillError:
    error = ModelError(words) if code == ExitCode.MODEL_UNUSABLE else CidermillError(words)
    error.exit_code = ExitCode(code)
    return error
