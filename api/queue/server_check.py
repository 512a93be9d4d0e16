"""Whether a Redis server is safe for a fleet, as far as a client that may change nothing can tell."""

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from redis import Redis, exceptions
from rq.utils import get_version

from api.errors import QueueError
from api.queue.access import ROLES, Role
from api.queue.connection import LOOPBACK_HOSTS, connect
from api.queue.fullness import FULL
from api.queue.leases import server_time

SKEW_SECONDS = 5.0


class Finding(NamedTuple):
    """state: ok, note or unsafe. found: what is, and what to do about it."""

    check: str
    state: str
    found: str


def check_server(url: str, role: str | None = None) -> list[Finding]:
    """Every finding about the server at `url`. role: what its user should be; None: as the user's name says.

    Raises QueueError when there is no connection, and for an unknown role.
    """
    connection = connect(url)
    try:
        info = connection.info()
    except exceptions.NoPermissionError as error:
        raise QueueError("the user may not send INFO, which every role needs; make its ACL anew") from error
    checks: Sequence[Callable[[], Finding]] = (
        lambda: _version(connection),
        lambda: _persistence(info),
        lambda: _eviction(info),
        lambda: _memory(info),
        lambda: _encryption(url),
        lambda: _anonymous(url),
        lambda: _clock(connection),
        lambda: _user(connection, role),
    )
    try:
        return [check() for check in checks]
    finally:
        connection.close()


def _version(connection: Redis) -> Finding:
    return Finding("version", "ok", ".".join(map(str, get_version(connection))))  # connect refuses an older one


def _persistence(info: dict[str, Any]) -> Finding:
    if not info.get("aof_enabled"):
        return Finding("persistence", "unsafe", "a restart empties the queue; set appendonly yes")
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status"):
        if info.get(name, "ok") != "ok":
            return Finding("persistence", "unsafe", f"the append-only file is not written ({name}); look at the disk")
    return Finding("persistence", "ok", "append-only file")


def _eviction(info: dict[str, Any]) -> Finding:
    policy = str(info.get("maxmemory_policy"))
    if policy != "noeviction":
        return Finding("eviction", "unsafe", f"{policy} drops what waits; set maxmemory-policy noeviction")
    return Finding("eviction", "ok", policy)


def _memory(info: dict[str, Any]) -> Finding:
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if not limit:
        return Finding("memory", "note", f"{_mb(used)} used, no limit: set maxmemory below what the machine has")
    share = f"{_mb(used)} of {_mb(limit)} used"
    if used > FULL * limit:
        return Finding("memory", "unsafe", f"{share}; raise maxmemory, or record what is finished")
    return Finding("memory", "ok", share)


def _mb(size: int) -> str:
    return f"{size / 2**20:.0f} MB"


def _encryption(url: str) -> Finding:
    parts = urlsplit(url)
    if parts.scheme == "rediss":
        return Finding("encryption", "ok", "TLS, certificate checked")
    if parts.scheme == "unix" or parts.hostname in LOOPBACK_HOSTS:
        return Finding("encryption", "ok", "not needed: the connection stays on this machine")
    return Finding(
        "encryption", "unsafe", "plain TCP: anybody on the way reads prompts and the password; use rediss://"
    )


def _anonymous(url: str) -> Finding:
    """Whether a client gets in that gives no user and no password."""
    parts = urlsplit(url)
    try:
        connect(_without_credentials(url)).close()
    except QueueError as error:
        if isinstance(error.__cause__, exceptions.AuthenticationError):
            return Finding("default user", "ok", "nobody gets in without a password")
        return Finding("default user", "note", "not known: the server did not answer a client without a user")
    if parts.scheme == "unix":
        return Finding("default user", "note", "whoever may open the socket gets in without a password")
    return Finding("default user", "unsafe", "anybody gets in without a password; set user default reset off")


def _without_credentials(url: str) -> str:
    scheme, _, rest = url.partition("://")  # urlunsplit makes unix:/path of unix:///path
    address, mark, query = rest.partition("?")
    left = "&".join(part for part in query.split("&") if not re.match("(username|password)=", part))
    host, slash, path = address.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}{mark}{left}"


def _clock(connection: Redis) -> Finding:
    """Leases go by the server's clock alone; logs and the ledger by this machine's."""
    before = time.time()
    there = server_time(connection)
    after = time.time()
    skew = max(before - there, there - after, 0.0)
    if skew > SKEW_SECONDS:
        return Finding("clock", "note", f"differs from this machine's by {skew:.0f} s; let both follow a time server")
    return Finding("clock", "ok", f"within {SKEW_SECONDS:.0f} s of this machine's")


def _user(connection: Redis, name: str | None) -> Finding:
    """Whether the user may do what its role needs, and nothing that it must not."""
    try:
        user = cast(Any, connection.acl_whoami())
        user = user.decode("utf-8", "replace") if isinstance(user, bytes) else str(user)
    except exceptions.ResponseError:
        user = "unknown"
    role = ROLES.get(name or (user if user in ROLES else "coordinator"))
    if role is None:
        raise QueueError(f"no role {name!r}; there are {', '.join(ROLES)}")
    denied, excess = access_gaps(connection, role)
    who = f"user {user} as {role.name}"
    if denied:
        return Finding("access", "unsafe", f"{who} lacks {', '.join(denied)}; give it the line of a new users.acl")
    if excess:
        return Finding("access", "unsafe", f"{who} may do too much: {', '.join(excess)}; give it the role's ACL line")
    return Finding("access", "ok", f"{who}: what it needs and no more")


def access_gaps(connection: Redis, role: Role) -> tuple[list[str], list[str]]:
    """Samples that the role needs and that are refused; samples that it must not send and that are taken.

    Nothing is run: Redis judges each command when it queues it, and the transaction is discarded.
    """
    return (
        [line for line, taken in _judged(connection, role.needs) if not taken],
        [line for line, taken in _judged(connection, role.refused(get_version(connection))) if taken],
    )


def _judged(connection: Redis, lines: Sequence[str]) -> list[tuple[str, bool]]:
    """Each line with whether the server would run it for this user."""
    pool: Any = connection.connection_pool
    raw = pool.get_connection()
    try:
        commands = [("MULTI",), *(tuple(line.split()) for line in lines), ("DISCARD",)]
        raw.send_packed_command(raw.pack_commands(commands))
        answers = [_answer(raw) for _ in commands][1:-1]
    finally:
        raw.disconnect()  # so that nothing can be left of the transaction
        pool.release(raw)
    refused = [isinstance(answer, exceptions.NoPermissionError) for answer in answers]
    return [(line, not no) for line, no in zip(lines, refused, strict=True)]


def _answer(raw: Any) -> Any:
    try:
        return raw.read_response()
    except exceptions.ResponseError as error:
        return error
