"""What each role of a fleet may do in Redis, as samples of what it sends; the ACL users are made from them.

A producer submits, looks and cancels. A worker takes requests and publishes results. A coordinator records, keeps
house, gives orders to workers, and does what a producer does. None may see other keys, change the server, or empty it.

From Redis 7 and Valkey on, an ACL tells apart who reads and who writes a key, and with which commands. There a producer
only reads what workers say and how machines fare, and a worker gives no orders, cancels nothing, and adds to the
results without taking any away. Redis 6.2 knows keys and commands alone, so each user may send all of its commands to
all of its keys. Its grammar holds for all the rest: a reset user may still use every channel there, and newer
subcommands would keep the server from starting.
"""

from dataclasses import dataclass

from redis.exceptions import NoPermissionError, RedisError

_CONNECTION = "PING\nINFO server\nACL WHOAMI\nTIME\nEVAL script 0\nDEL cidermill:nothing"

_PRODUCER = f"""{_CONNECTION}
HMGET rq:job:x status
HSTRLEN rq:job:x data
HEXISTS cidermill:quarantine x
HSET rq:job:x status queued
TYPE rq:job:x
EXPIRE rq:job:x 1
PERSIST rq:job:x
SADD rq:queues x
SADD cidermill:leaving:x y
SMEMBERS rq:queues
SMEMBERS cidermill:workers
RPUSH rq:queue:x y
LLEN rq:queue:x
LRANGE rq:queue:x 0 0
SISMEMBER cidermill:leaving:x y
SET cidermill:cancel:x 1
DEL rq:job:x rq:results:x rq:executions:x cidermill:attempts:x cidermill:lost:x cidermill:leaving:x rq:queue:x
HDEL cidermill:quarantine x
HGETALL cidermill:quarantine
LRANGE cidermill:lost:x 0 0
ZRANGE rq:failed:x 0 0
ZRANGE rq:wip:x 0 0
ZREM rq:failed:x y
ZREM rq:wip:x y
ZSCAN rq:wip:x 0
DEL rq:execution:x
XRANGE cidermill:results - + COUNT 1
GETRANGE cidermill:worker:x 0 0
SREM cidermill:workers x
ZREVRANGE cidermill:seen 0 1
GETRANGE cidermill:seen:x 0 0
PTTL cidermill:seen:x
EVAL script 1 cidermill:deaths:x
EVAL script 2 rq:queue:x cidermill:leaving:x
SET cidermill:placed:x 1
GET cidermill:placed:x
GETEX cidermill:placed:x EX 1
SET cidermill:topping-up:x y
PTTL cidermill:topping-up:x
GET cidermill:topping-up:x
DEL cidermill:topping-up:x
SCRIPT LOAD script
EVALSHA hash 1 cidermill:topping-up:x"""

# Bringing back what dead workers held; workers and coordinators share it.
_UPKEEP = """TYPE cidermill:results
HSTRLEN rq:job:x data
HMGET rq:job:x status
HGET rq:job:x status
HSET rq:job:x status queued
HSET cidermill:quarantine x y
HINCRBY rq:job:x number_of_retries 1
HDEL rq:job:x x
EXISTS rq:job:x rq:execution:x rq:worker:x
EXPIRE rq:job:x 1
EXPIRE cidermill:lost:x 1
EXPIRE rq:results:x 1
PERSIST rq:job:x
SET rq:clean_registries:x 1
TTL rq:clean_registries:x
SET rq:queue:x:intermediate:first_seen:x 1
TTL rq:queue:x:intermediate:first_seen:x
SET cidermill:ended:x 1
PTTL cidermill:ended:x
DEL cidermill:ended:x
DEL rq:clean_registries:x rq:execution:x rq:queue:x rq:executions:x
LRANGE rq:queue:x:intermediate 0 0
LREM rq:queue:x:intermediate 1 x
LPUSH rq:queue:x y
RPUSH rq:queue:x y
RPUSH cidermill:lost:x y
RPUSH cidermill:deaths:x y
LTRIM cidermill:lost:x 0 0
LTRIM cidermill:deaths:x 0 0
EXPIRE cidermill:deaths:x 1
GETRANGE cidermill:seen:x 0 0
GETRANGE cidermill:attempts:x 0 0
XADD cidermill:results * a b
LRANGE cidermill:lost:x 0 0
SADD rq:queues x
SMEMBERS rq:workers:x
SREM rq:workers:x y
SREM rq:workers x
ZADD rq:failed:x 1 y
ZREM rq:wip:x y
ZRANGE rq:wip:x 0 0
ZRANGEBYSCORE rq:wip:x 0 1
ZREMRANGEBYSCORE rq:finished:x 0 1
ZSCORE rq:wip:x y
ZSCAN rq:wip:x 0
XADD rq:results:x * a b
EVAL script 3 rq:queue:x:intermediate rq:queue:x rq:queue:x:intermediate:first_seen:x"""

_WORKER = f"""{_CONNECTION}
{_UPKEEP}
CLIENT INFO
CLIENT SETNAME x
EVAL script 3 rq:queue:x rq:queue:x:intermediate cidermill:round:x
LRANGE rq:queue:x 0 0
LREM rq:queue:x 1 y
RPUSH rq:queue:x:intermediate y
HSET rq:job:x taken 1
HMGET cidermill:round:x left
HSET cidermill:round:x left 1
EXPIRE cidermill:round:x 1
DEL cidermill:round:x
LLEN rq:queue:x
SMEMBERS rq:queues
HSET rq:worker:x state idle
HINCRBY rq:worker:x successful_job_count 1
HINCRBYFLOAT rq:worker:x total_working_time 1
HDEL rq:worker:x current_job
EXPIRE rq:worker:x 1
DEL rq:worker:x cidermill:worker:x cidermill:attempts:x cidermill:lost:x
SADD rq:workers x
SADD cidermill:workers x
SMEMBERS cidermill:workers
GETRANGE cidermill:worker:x 0 0
SREM cidermill:workers x
SREM rq:worker:x:executions y
SADD rq:executions:x y
SET cidermill:worker:x y
SET cidermill:seen:x y
DEL cidermill:worker:x cidermill:order:x
DEL cidermill:seen:x
DEL cidermill:deaths:x
LREM cidermill:deaths:x 0 y
ZADD cidermill:seen 1 x
ZREM cidermill:seen x
ZREMRANGEBYRANK cidermill:seen 0 1
GETRANGE cidermill:order:x 0 0
EVAL script 1 cidermill:deaths:x
LRANGE cidermill:deaths:x 0 0
EXISTS cidermill:cancel:x
HEXISTS cidermill:quarantine x
SISMEMBER cidermill:leaving:x y
SET cidermill:attempts:x 1
DECRBY cidermill:attempts:x 1
HGET rq:execution:x attempt
HSET rq:execution:x attempt 1
ZADD rq:wip:x 1 y
ZADD rq:finished:x 1 y
HSET rq:job:x failed_on y
SUBSCRIBE rq:pubsub:x
UNSUBSCRIBE rq:pubsub:x"""

_COORDINATOR = f"""{_PRODUCER}
{_UPKEEP}
SET cidermill:order:x pause
DEL cidermill:deaths:x
XGROUP CREATE cidermill:results x 0 MKSTREAM
XREADGROUP GROUP x y COUNT 1 STREAMS cidermill:results >
XAUTOCLAIM cidermill:results x y 1 0
XACK cidermill:results x 1-1
XDEL cidermill:results 1-1"""

OUTSIDE = (
    "FLUSHALL",
    "FLUSHDB",
    "KEYS *",
    "SCAN 0",
    "CONFIG GET maxmemory",
    "CLIENT LIST",
    "ACL LIST",
    "SCRIPT FLUSH",
    "RENAME rq:queue:x rq:queue:y",
    "PUBLISH rq:pubsub:x y",
    "EXISTS other:key",
    "DEL other:key",
)
"""What nobody may send."""

# What only an ACL of Redis 7 refuses.
_NOT_A_PRODUCERS = """RPUSH cidermill:deaths:x y
DEL cidermill:deaths:x
DEL cidermill:results
DEL cidermill:seen:x
SET cidermill:worker:x y"""
_NOT_A_WORKERS = """SET cidermill:order:x pause
SET cidermill:cancel:x 1
DEL cidermill:cancel:x
DEL cidermill:results"""

_WITH_SUBCOMMAND = frozenset({"ACL", "CLIENT", "CONFIG", "SCRIPT", "XGROUP"})
_TRANSACTIONS = ("multi", "exec", "discard", "watch", "unwatch")


@dataclass(frozen=True)
class Role:
    """keys and channels: patterns. needs: samples of every command that the role sends. reads: patterns of keys that it
    only reads. narrow: commands, and patterns of keys that it sends these alone to. forgoes: samples that for reads and
    narrow must be refused. The last three are Redis 7's; under Redis 6.2 these keys are like the others."""

    name: str
    keys: tuple[str, ...]
    channels: tuple[str, ...]
    needs: tuple[str, ...]
    reads: tuple[str, ...] = ()
    narrow: tuple[tuple[str, str], ...] = ()
    forgoes: tuple[str, ...] = ()

    @property
    def commands(self) -> frozenset[str]:
        """As an ACL rule names them, `xgroup|create`; commands of transactions apart."""
        return frozenset(map(command_of, self.needs))

    def refused(self, version: tuple[int, ...]) -> tuple[str, ...]:
        """Samples that this role must not be able to send to a server of the version: what nobody may, and what only
        other roles need."""
        others = (line for role in ROLES.values() for line in role.needs if command_of(line) not in self.commands)
        return (*OUTSIDE, *dict.fromkeys(others), *(self.forgoes if version >= BY_KEY_SINCE else ()))

    def acl_line(self, password_sha256: str, *, by_key: bool = True) -> str:
        """The line of an ACL file for a user of the role's name. password_sha256: in hex. by_key: with permissions of
        single keys, of which a server before BY_KEY_SINCE knows nothing."""
        narrow = [pattern for _, patterns in self.narrow for pattern in patterns.split()]
        keys = [*self.keys, *([] if by_key else [*self.reads, *narrow])]
        selectors = [("eval", "*"), *self.narrow] if by_key else []
        rules = [
            *(f"~{pattern}" for pattern in keys),
            *(f"%R~{pattern}" for pattern in self.reads if by_key),
            *(f"&{pattern}" for pattern in self.channels),
            "-@all",
            *(f"+{name}" for name in (*_TRANSACTIONS, *sorted(self.commands))),
            *(_selector(commands, patterns) for commands, patterns in selectors),
        ]
        return f"user {self.name} reset resetchannels on #{password_sha256} {' '.join(rules)}"


BY_KEY_SINCE = (7, 0)
"""The version of Redis whose ACL has permissions for single keys. Every Valkey says that it is newer."""


def _selector(commands: str, patterns: str) -> str:
    """Commands that a user may send to these keys, beside all that it may do otherwise.

    EVAL is sent with any key: it needs to read and to write those that it names, whatever the script does with them,
    and each command of the script is judged by itself.
    """
    return f"({' '.join(f'+{name}' for name in commands.split())} {' '.join(f'~{name}' for name in patterns.split())})"


NO_DEFAULT_USER = "user default reset resetchannels off"
"""The line of an ACL file by which nobody gets in without a name."""


_FORBIDDEN_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")
"""How Redis 7, and how Redis 6.2, say it of a command that a script sends."""


def forbids(error: RedisError) -> bool:
    """Whether Redis refused a command because the user's ACL does not allow it."""
    return isinstance(error, NoPermissionError) or any(words in str(error) for words in _FORBIDDEN_IN_SCRIPT)


def command_of(line: str) -> str:
    """The command of a sample, as an ACL rule names it."""
    words = line.lower().split()
    return "|".join(words[:2]) if words[0].upper() in _WITH_SUBCOMMAND else words[0]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _lines(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.splitlines()))


_REQUEST_KEYS = "rq:job:* rq:results:* rq:executions:* rq:failed:* cidermill:attempts:* cidermill:lost:*"
_SHARED_KEYS = f"rq:queues rq:queue:* {_REQUEST_KEYS} cidermill:quarantine cidermill:leaving:* cidermill:nothing"
_SAID_KEYS = "cidermill:results cidermill:worker:* cidermill:seen cidermill:seen:* cidermill:deaths:*"
_LEASE_KEYS = "rq:wip:* rq:execution:*"
_WINDOW_KEYS = "cidermill:placed:* cidermill:topping-up:*"
_UPKEEP_KEYS = (
    f"{_LEASE_KEYS} cidermill:ended:* rq:finished:* rq:clean_registries:* rq:workers rq:workers:* rq:worker:* "
    "cidermill:workers cidermill:seen cidermill:seen:* cidermill:deaths:*"
)

ROLES = {
    role.name: role
    for role in (
        Role(
            "producer",
            _words(f"{_SHARED_KEYS} cidermill:cancel:* cidermill:workers {_LEASE_KEYS} {_WINDOW_KEYS}"),
            (),
            _lines(_PRODUCER),
            reads=_words(_SAID_KEYS),
            forgoes=_lines(_NOT_A_PRODUCERS),
        ),
        Role(
            "worker",
            _words(f"{_SHARED_KEYS} {_UPKEEP_KEYS} cidermill:worker:* cidermill:round:*"),
            ("rq:pubsub:*",),
            _lines(_WORKER),
            reads=("cidermill:cancel:*",),
            narrow=(
                ("xadd type", "cidermill:results"),
                ("getrange del", "cidermill:order:* cidermill:worker:*"),
            ),
            forgoes=_lines(_NOT_A_WORKERS),
        ),
        Role(
            "coordinator",
            _words(f"{_SHARED_KEYS} {_UPKEEP_KEYS} {_WINDOW_KEYS} {_SAID_KEYS} cidermill:cancel:* cidermill:order:*"),
            (),
            _lines(_COORDINATOR),
        ),
    )
}
