import logging
import time
from pathlib import Path

import pytest
from redis import exceptions

from api.errors import ExitCode, QueueError
from api.queue.connection import connect, redacted
from api.queue.server import PrivateServer


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:pa55@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://user:pa55@host/1?ssl_ca_certs=ca.pem", "rediss://user:***@host/1?ssl_ca_certs=ca.pem"),
        ("redis://user:p@5:5/5@host:6379", "redis://user:***@host:6379"),
        ("redis://host/0?password=pa55&db=1", "redis://host/0?password=***&db=1"),
        ("rediss://host/0?ssl_password=pa55", "rediss://host/0?ssl_password=***"),
        ("unix:///run/redis.sock?db=0", "unix:///run/redis.sock?db=0"),
        ("unix://user:pa55@/run/redis.sock", "unix://user:***@/run/redis.sock"),
        ("nonsense", "nonsense"),
    ],
)
def test_passwords_are_redacted(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss://:pa55@127.0.0.1:1/0?ssl_cert_reqs=none", "ssl_cert_reqs"),
        ("rediss://:pa55@127.0.0.1:1/0?ssl_cert_reqs=NONE", "ssl_cert_reqs"),
        ("rediss://:pa55@127.0.0.1:1/0?ssl_cert_reqs=optional", "ssl_cert_reqs"),
        ("rediss://:pa55@127.0.0.1:1/0?ssl_check_hostname=False", "ssl_check_hostname"),
        ("http://:pa55@127.0.0.1:1", "redis://"),
        ("redis://:pa55@127.0.0.1:1/0", r"does not answer \(.*Connection refused.*\); is it running"),
        ("unix:///nowhere/redis.sock", r"does not answer \(.*No such file or directory.*\); is it running"),
        ("redis://:pa55@[::1", "cannot be read"),
        ("redis://:pa55@127.0.0.1:port", "cannot be"),
        ("redis://127.0.0.1:1/0?socket_timeout=long", "cannot be used"),
    ],
)
def test_url_that_cannot_be_used_is_refused_without_its_password(url: str, said: str) -> None:
    before = time.monotonic()
    with pytest.raises(QueueError, match=said) as caught:
        connect(url)
    assert "pa55" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.QUEUE_UNAVAILABLE
    assert time.monotonic() - before < 5


def test_wrong_password_is_told_from_no_answer(server: PrivateServer) -> None:
    redis = connect(server.url)
    redis.config_set("requirepass", "right")
    redis.auth("right")
    with pytest.raises(QueueError, match="refuses"):
        connect(server.url)
    assert connect(server.url.replace("unix://", "unix://:right@")).ping()
    redis.config_set("requirepass", "")


def test_plain_tcp_beyond_this_machine_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(QueueError):
        connect("redis://:pa55@cidermill.invalid:6379/0")
    assert "plain TCP" in caplog.text
    assert "pa55" not in caplog.text


def test_later_commands_are_tried_again(server: PrivateServer, tmp_path: Path) -> None:
    connection = connect(server.url, patience_seconds=10)
    server.stop()
    assert not server.alive()
    again = PrivateServer.start(tmp_path / "data")
    connection.set("key", "value")
    assert connection.get("key") == b"value"
    again.stop()


def test_impatient_connection_gives_up(server: PrivateServer) -> None:
    connection = connect(server.url, patience_seconds=0)
    server.stop()
    before = time.monotonic()
    with pytest.raises(exceptions.ConnectionError):
        connection.get("key")
    assert time.monotonic() - before < 1
