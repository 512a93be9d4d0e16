"""What fakeredis does not do as a server does: only on a server can these promises be shown.

Each test runs on both. fakeredis fails it, for the reason that is given; when it no longer does, this is an error.
"""

import pytest
from fakeredis import FakeStrictRedis
from redis import Redis, exceptions

from api.queue.access import ROLES
from tests.queue_backends import Imitation, differs


@pytest.fixture
def bare(redis: Redis) -> Redis:
    """The backend without what the imitation adds."""
    return FakeStrictRedis() if isinstance(redis, Imitation) else redis


@differs("it has no INFO; the imitation answers for it with a version and the time since it was made")
def test_a_server_says_how_long_it_is_up_and_what_it_is(bare: Redis) -> None:
    info = bare.info("server")
    assert info["uptime_in_seconds"] >= 0
    assert str(info["redis_version"]).count(".") >= 2


@differs("it takes a memory limit and does not keep it: a full server cannot be had", pytest.fail.Exception)
def test_a_full_server_refuses_what_is_new_and_keeps_what_it_has(redis: Redis) -> None:
    redis.set("old", 1)
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(exceptions.OutOfMemoryError):
            redis.set("new", 1)
        assert redis.get("old") == b"1"
    finally:
        redis.config_set("maxmemory", "0")


@differs("its CONFIG knows no append-only file: nothing is kept, restarts and full disks cannot be had")
def test_a_server_keeps_an_append_only_file(redis: Redis) -> None:
    assert redis.config_get("appendonly") == {"appendonly": "yes"}


def refusal(redis: Redis, line: str) -> str:
    """What is said against a sample; most are fine, of some the key is of another type or does not exist."""
    try:
        redis.execute_command(*line.split())
    except exceptions.ResponseError as error:
        return str(error).lower()
    return ""


def test_every_command_of_every_role_is_known(redis: Redis) -> None:
    """To both, so that the contract can be tested on both at all."""
    lines = dict.fromkeys(line for role in ROLES.values() for line in role.needs)
    apart = ("SUBSCRIBE", "UNSUBSCRIBE", "INFO")  # they change what the connection is for; the test above
    unknown = [line for line in lines if line.split()[0] not in apart and "unknown" in refusal(redis, line)]
    assert unknown == []
