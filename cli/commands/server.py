"""The Redis server of a fleet: the files that it runs with, and whether a running one is safe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.errors import ExitCode, QueueError
from cli.options import DataDir, RedisUrl, Workspace


def register(app: typer.Typer) -> None:
    app.command("redis-config", epilog="Example: cidermill redis-config --out mill-redis --host mill.example")(
        redis_config
    )
    app.command("redis-check", epilog="Example: CIDERMILL_REDIS_URL_FILE=worker.url cidermill redis-check")(redis_check)


def redis_config(
    out: Annotated[Path, typer.Option("--out", help="A folder to make.")] = Path("cidermill-redis"),
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Name or address that clients use; again for more. First: in the URLs."),
    ] = None,
    bind: Annotated[
        list[str] | None,
        typer.Option("--bind", help="Address to listen on; again for more. Default: all with TLS, else loopback."),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="TCP port.")] = 6379,
    tls: Annotated[bool, typer.Option("--tls/--no-tls", help="TLS, or loopback alone.")] = True,
    max_memory: Annotated[str, typer.Option("--max-memory", help="Limit of the data, as 512mb or 2gb.")] = "2gb",
    redis_6: Annotated[
        bool, typer.Option("--redis-6", help="For Redis 6.2, whose users may send all of their commands to all keys.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where the files will lie on the server. Default: --out.", show_default=False),
    ] = None,
) -> None:
    """Write the files of a Redis or Valkey server for a fleet: configuration, users, certificates, and their URLs.

    There are three users with just the commands and keys that they need: producer, worker and coordinator. Their
    passwords are made here and are only in the files clients/*.url, which are for CIDERMILL_REDIS_URL_FILE; take
    clients/ca.crt along with them. To use your own certificates, put them in place of server.crt and server.key, and
    your authority's in place of clients/ca.crt. ca.key is only needed for a new server.crt: keep it off the server.
    """
    import socket

    from api.queue.server_files import ServerPlan, write_server_files
    from cli.output import emit

    hosts = host or ([socket.gethostname()] if tls else ["127.0.0.1"])
    plan = ServerPlan(hosts, folder or out.absolute(), port, tls, bind or (), max_memory, by_key=not redis_6)
    files = write_server_files(out.absolute(), plan)
    emit(({"file": str(path), "mode": f"{path.stat().st_mode & 0o777:o}"} for path in files), {"file": "file"})
    typer.echo(f"start it: redis-server {plan.folder}/redis.conf", err=True)


def redis_check(
    redis: RedisUrl = None,
    role: Annotated[
        str | None,
        typer.Option("--role", help="producer, worker or coordinator. Default: the user's name.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Check whether a fleet's Redis is safe: persistence, eviction, memory, TLS, clock, and what its user may do.

    Changes nothing. Exits with 4 when something is unsafe.
    """
    from api.queue.server_check import check_server
    from cli.output import emit

    url = Workspace(data_dir=data_dir, redis=redis).redis_url
    if url is None:
        raise QueueError("no Redis is configured; set CIDERMILL_REDIS_URL or CIDERMILL_REDIS_URL_FILE")
    findings = [finding._asdict() for finding in check_server(url, role)]
    emit(findings, {"check": "check", "state": "state", "found": "found"})
    if any(finding["state"] == "unsafe" for finding in findings):
        raise typer.Exit(ExitCode.QUEUE_UNAVAILABLE)
