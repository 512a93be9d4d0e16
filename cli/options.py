"""Options that several commands share, and the workspace they open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from api.errors import InputError, QueueError

if TYPE_CHECKING:
    from redis import Redis

    from api.ledger.ledger import Ledger
    from api.queue.requests import RequestQueue
    from api.settings import Settings

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Ledger, converted models, private server.", show_default=False)
]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        help="Redis of the fleet (redis://, rediss://, unix://), without a password: that belongs in "
        "CIDERMILL_REDIS_URL, or in a file that CIDERMILL_REDIS_URL_FILE names.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", help="NAME[@DTYPE]: smollm2, an MLX directory, a .gguf file, a hub id.", show_default=False
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        help="auto, none, or suffix, mtp, a draft model or a drafter's checkpoint, joined by +; "
        "options follow a colon: mtp:depth=4,beam=2.",
        show_default=False,
    ),
]
Kernels = Annotated[
    Literal["auto", "off"] | None,
    typer.Option(
        "--kernels",
        help="auto: those that run on this machine and gain there; off: MLX's own operations alone.",
        show_default=False,
    ),
]
LogFormat = Annotated[
    Literal["text", "json"] | None,
    typer.Option(
        "--log-format",
        help="text: what happens to requests as lines for people; json: as a JSON object a line.",
        show_default=False,
    ),
]
BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="Batch id, the start of one, or 'latest'.")]


# On one machine no network can be late, so a dead worker's request need not wait as long as on a fleet.
LOCAL_LEASE_SECONDS = 10.0
LOCAL_HEARTBEAT_SECONDS = 2.0


def canonical_model(name: str) -> str:
    """A model as producers and workers name it alike. Raises ModelError."""
    from worker.engine.models import ModelSpec

    return str(ModelSpec.parse(name))


def _refuse_password(url: str | None) -> None:
    """Raises InputError for a URL on the command line that holds a password."""
    if url is None:
        return
    from api.queue.connection import redacted

    if redacted(url) != url:
        raise InputError(
            "the password in --redis can be read in every process list; put the URL in CIDERMILL_REDIS_URL, "
            "or in a file of mode 0600 that CIDERMILL_REDIS_URL_FILE names"
        )


class Workspace:
    """The settings of a command, and what they lead to, opened when first asked for."""

    def __init__(self, *, data_dir: Path | None = None, redis: str | None = None, **flags: Any) -> None:
        from api.settings import load_settings

        _refuse_password(redis)
        self.flags = {"data_dir": data_dir, "redis_url": redis, **flags}
        self.settings: Settings = load_settings(**self.flags)
        self.settings.model = canonical_model(self.settings.model)
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            from api.ledger.ledger import Ledger

            self._ledger = Ledger.open(self.settings.ledger_path)
        return self._ledger

    @property
    def redis_url(self) -> str | None:
        secret = self.settings.effective_redis_url
        return secret.get_secret_value() if secret else None

    def connect(self) -> Redis:
        """The fleet's Redis. Raises QueueError when none is configured or it does not answer."""
        from api.queue.connection import connect

        url = self.redis_url
        if url is None:
            raise QueueError(
                "no Redis is configured; give --redis URL or set CIDERMILL_REDIS_URL or CIDERMILL_REDIS_URL_FILE, "
                "or use `cidermill run` for a single machine"
            )
        return connect(url)

    def reach(self) -> Redis | None:
        """The configured Redis, else the private server of a `run` that is under way, else None."""
        if self.redis_url:
            return self.connect()
        from api.queue.connection import connect
        from api.queue.server import PrivateServer

        server = PrivateServer.running(self.settings.data_dir)
        return connect(server.url) if server else None

    def queue(self, connection: Redis) -> RequestQueue:
        """The request queue. The private server of one machine needs little time to settle after a start."""
        from api.queue.requests import RequestQueue
        from api.queue.safe_queue import SETTLING_SECONDS

        heartbeat = self.settings.heartbeat_seconds
        return RequestQueue(
            connection,
            max_attempts=self.settings.max_attempts,
            request_timeout_seconds=self.settings.request_timeout_seconds,
            settling_seconds=SETTLING_SECONDS if self.redis_url else LOCAL_LEASE_SECONDS,
            heartbeat_seconds=heartbeat if self.redis_url else min(heartbeat, LOCAL_HEARTBEAT_SECONDS),
        )
