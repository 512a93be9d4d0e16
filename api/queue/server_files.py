"""The files of a fleet's Redis server: its configuration, its ACL users, its certificates, and a URL for each role."""

import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from api.errors import InputError, StorageError
from api.queue.access import NO_DEFAULT_USER, ROLES
from api.queue.certificates import make_certificates

LOOPBACK = ("127.0.0.1", "-::1")
EVERYWHERE = ("*", "-::*")
CLIENTS = "clients"
"""The folder of what goes to the machines of the fleet: a URL for each role, and the authority's certificate."""

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?")
_MEMORY = re.compile(r"[1-9]\d*(mb|gb)")


@dataclass(frozen=True)
class ServerPlan:
    """hosts: names and addresses that clients use, the first one in their URLs. folder: where the files will lie on
    the server. tls: else loopback only. bind: addresses to listen on; none: everywhere with TLS, else loopback. by_key:
    users as Redis 7 and Valkey know them (api/queue/access.py)."""

    hosts: Sequence[str]
    folder: Path
    port: int = 6379
    tls: bool = True
    bind: Sequence[str] = ()
    max_memory: str = "2gb"
    by_key: bool = True

    def check(self) -> None:
        """Raises InputError for what would not be a safe configuration, or none."""
        for host in (*self.hosts, *self.bind):
            if not _HOST.fullmatch(host):
                raise InputError(f"{host!r} is no name and no address of a server")
        if not self.tls and not all(host in ("127.0.0.1", "localhost", "::1") for host in (*self.hosts, *self.bind)):
            raise InputError(
                "without TLS the server listens on loopback alone; leave out --host and --bind, or --no-tls"
            )
        if not _MEMORY.fullmatch(self.max_memory):
            raise InputError(f"{self.max_memory!r} is no amount of memory; give 512mb or 2gb")
        if re.search(r"[\"'\\\s]", str(self.folder)):
            raise InputError(f"folder {self.folder}: its path may have no spaces and quotes; choose another")


def write_server_files(out: Path, plan: ServerPlan) -> list[Path]:
    """Make the folder `out` (mode 0700) with all files; returns them, sorted.

    Raises InputError, QueueError (no openssl), StorageError: it exists or cannot be made. Nothing is left then.
    """
    plan.check()
    if out.exists() or out.is_symlink():
        raise StorageError(f"{out} exists, and what a fleet uses is not overwritten; give another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise StorageError(f"{out} cannot be made: {error.strerror}") from error
    try:
        _fill(scratch, plan)
        scratch.rename(out)
    except OSError as error:
        raise StorageError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return sorted(path for path in out.rglob("*") if path.is_file())


def _fill(folder: Path, plan: ServerPlan) -> None:
    clients = folder / CLIENTS
    for made in (folder / "data", clients):
        made.mkdir(mode=0o700)
    if plan.tls:
        make_certificates(folder, plan.hosts)
        shutil.copyfile(folder / "ca.crt", clients / "ca.crt")
    lines = [NO_DEFAULT_USER]
    for role in ROLES.values():
        password = secrets.token_urlsafe(32)
        lines.append(role.acl_line(hashlib.sha256(password.encode()).hexdigest(), by_key=plan.by_key))
        _write_private(clients / f"{role.name}.url", f"{_url(plan, role.name, password)}\n")
    _write_private(folder / "users.acl", "\n".join(lines) + "\n")
    _write_private(folder / "redis.conf", configuration(plan))


def configuration(plan: ServerPlan) -> str:
    """The text of redis.conf, for Redis 6.2 and newer and for Valkey."""
    bind = plan.bind or (EVERYWHERE if plan.tls else LOOPBACK)
    files = plan.folder
    listening = (
        f"""port 0
tls-port {plan.port}
tls-cert-file {files}/server.crt
tls-key-file {files}/server.key
tls-protocols "TLSv1.2 TLSv1.3"
# Clients show a password, not a certificate.
tls-auth-clients no"""
        if plan.tls
        else f"port {plan.port}"
    )
    return f"""# A server for a fleet of cidermill; made by `cidermill redis-config`.
bind {" ".join(bind)}
protected-mode yes
{listening}
tcp-keepalive 60

# Three users, none of them `default`; their passwords are in {CLIENTS}/, their hashes here.
aclfile {files}/users.acl

# What is queued survives a crash, but for the last second.
dir {files}/data
appendonly yes
appendfsync everysec
save ""

# A full server refuses what is new; it drops nothing that waits.
maxmemory {plan.max_memory}
maxmemory-policy noeviction
proto-max-bulk-len 128mb
"""


def _url(plan: ServerPlan, user: str, password: str) -> str:
    host = f"[{plan.hosts[0]}]" if ":" in plan.hosts[0] else plan.hosts[0]
    if plan.tls:
        return f"rediss://{user}:{password}@{host}:{plan.port}/0?ssl_ca_certs=ca.crt"
    return f"redis://{user}:{password}@{host}:{plan.port}/0"


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
