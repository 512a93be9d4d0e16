"""Connections to Redis: every retry and every timeout is explicit, and an untrusted TLS setting is refused."""

import logging
import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis import Redis, exceptions
from redis.backoff import EqualJitterBackoff, NoBackoff
from redis.retry import Retry
from rq.utils import get_version

from api.errors import QueueError

logger = logging.getLogger("cidermill.queue")

OLDEST_SERVER = (6, 2, 0)
CONNECT_TIMEOUT_SECONDS = 5
SOCKET_TIMEOUT_SECONDS = 30
FIRST_PING_PATIENCE_SECONDS = 0.5
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
SCHEMES = frozenset({"redis", "rediss", "unix"})

_PASSWORD = re.compile(r"(?<=://)([^:/?#@]*):.*@", re.DOTALL)
_QUERY_PASSWORD = re.compile(r"([?&][^=&]*password[^=&]*=)[^&]*", re.IGNORECASE)


def connect(url: str, *, patience_seconds: float = 10, client: type[Redis] = Redis) -> Redis:
    """A connection that has answered a PING. client: which class it is of.

    patience_seconds: how long, about, a later command is tried again through an outage before it raises
    redis.exceptions.ConnectionError. The first PING is not that patient.
    Raises QueueError: unreachable, refused, too old, or a URL that cannot be trusted.
    """
    _check(url)
    try:
        connection = client.from_url(
            url,
            retry=_retry(FIRST_PING_PATIENCE_SECONDS),
            socket_timeout=SOCKET_TIMEOUT_SECONDS,
            socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
            protocol=2,
            **({} if url.startswith("unix:") else {"socket_keepalive": True}),
        )
        connection.ping()
        version = get_version(connection)
    except exceptions.AuthenticationError as error:
        raise QueueError(f"Redis at {redacted(url)} refuses the user or the password in the URL") from error
    except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
        if "certificate verify failed" in str(error):
            raise QueueError(
                f"Redis at {redacted(url)} shows a certificate that is not trusted; give the authority's certificate "
                "(ssl_ca_certs=FILE in the URL), and the name or address that the certificate is for"
            ) from error
        cause = redacted(" ".join(str(error).split()))
        raise QueueError(
            f"Redis at {redacted(url)} does not answer ({cause}); is it running, and is the URL right?"
        ) from error
    except (exceptions.RedisError, OSError, ValueError, TypeError) as error:
        raise QueueError(f"Redis at {redacted(url)} cannot be used: {type(error).__name__}") from error
    if version < OLDEST_SERVER:
        found, needed = (".".join(map(str, number)) for number in (version, OLDEST_SERVER))
        raise QueueError(f"Redis at {redacted(url)} is version {found}; {needed} or newer is needed")
    set_patience(connection, patience_seconds)
    return connection


def set_patience(connection: Redis, seconds: float) -> None:
    """How long, about, commands are tried again from now on."""
    connection.set_retry(_retry(seconds))


def address(connection: Redis) -> str:
    """Which Redis a connection leads to, without user and password: HOST:PORT/DATABASE, or PATH/DATABASE of a socket.

    The names of the loopback interface are one.
    """
    options: dict[str, Any] = connection.connection_pool.connection_kwargs
    host, database = options.get("host", "localhost"), options.get("db") or 0
    place = options.get("path") or f"{'localhost' if host in LOOPBACK_HOSTS else host}:{options.get('port', 6379)}"
    return f"{place}/{database}"


def redacted(url: str) -> str:
    """The URL with its passwords replaced by ***, for logs and messages; too much is hidden rather than too little."""
    return _QUERY_PASSWORD.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise QueueError("the Redis URL cannot be read; give redis://HOST:PORT/0") from error
    if parts.scheme not in SCHEMES:
        raise QueueError(f"Redis URL {redacted(url)} must start with redis://, rediss:// or unix://")
    options = {key.lower(): value.lower() for key, value in parse_qsl(parts.query, keep_blank_values=True)}
    if options.get("ssl_cert_reqs", "required") not in ("required", "2"):
        raise QueueError(
            f"Redis URL {redacted(url)} turns off the check of the server's certificate (ssl_cert_reqs); "
            "give ssl_ca_certs=FILE instead"
        )
    if options.get("ssl_check_hostname", "true") not in ("true", "1", "yes"):
        raise QueueError(f"Redis URL {redacted(url)} turns off ssl_check_hostname; remove it")
    if parts.scheme == "redis" and host not in LOOPBACK_HOSTS:
        logger.warning("%s is plain TCP: prompts, results and the password are readable on the way", redacted(url))


def _retry(patience_seconds: float) -> Retry:
    """Waits that grow to `cap` and add up to about `patience_seconds`, each between a half and the whole of its length:
    a fleet does not come back to a server that has just started all at once."""
    cap = min(2.0, patience_seconds / 5)
    if cap <= 0:
        return Retry(NoBackoff(), 0)
    return Retry(EqualJitterBackoff(cap=cap, base=cap / 20), round(patience_seconds / (0.75 * cap)) + 4)
