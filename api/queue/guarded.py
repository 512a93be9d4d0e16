"""Commands that are carried out only as long as a lease and its request are as they were seen, in one step.

WATCH would do for one lease. The registry that all leases of a queue share changes with each of their renewals, and in
a busy fleet a transaction that watches it does not get through.
"""

from collections.abc import Callable, Collection
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from redis import Redis
from rq.job import Job

if TYPE_CHECKING:
    from redis.client import Pipeline

CARRY_OUT = """
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not ends then return false end
if ARGV[2] == 'ended' then
  local now = redis.call('TIME')
  if tonumber(ends) > now[1] + now[2] / 1000000 then return false end
end
local entry = redis.call('TYPE', KEYS[2]).ok == 'hash'
if (entry and redis.call('HGET', KEYS[2], 'status') or '') ~= ARGV[3] then return false end
redis.call('DEL', KEYS[3]) -- a write that needs no memory: a full server lets a script on that has written
local troubles, place, needed = {}, 5, tonumber(ARGV[4])
while place <= #ARGV do
  local last = place + tonumber(ARGV[place])
  local answer = redis.pcall(unpack(ARGV, place + 1, last))
  if type(answer) == 'table' and answer.err then
    local trouble = tostring(answer.err)
    local of_data = trouble:find('^ERR ') or trouble:find('^WRONGTYPE ')
    local forbidden = trouble:find('ACL failure in script', 1, true) or trouble:find('The user executing', 1, true)
    local lost = needed > 0 and trouble:find('^WRONGTYPE ')
    if forbidden or lost or not of_data then return redis.error_reply(trouble) end
    troubles[#troubles + 1] = trouble
  end
  place, needed = last + 1, needed - 1
end
return troubles
"""
"""The commands follow, each after the number of its words. One that fails on what is stored is left out, as EXEC leaves
it out; where the server refuses one (to a user who may not, say), those after it are not done. So it is with the first
ARGV[4] of them where a key is of a wrong type: without these, nobody would have the request any more."""


def carry_out(
    connection: Redis,
    registry: str,
    note: str | bytes,
    member: str | bytes,
    status: str | bytes,
    write: Callable[["Pipeline"], None],
    *,
    ended: bool,
    needed: Collection[str] = (),
) -> list[str] | None:
    """Do what `write` adds to a transaction, if the lease is there and the request has that status ("": no entry).

    note: a key that is deleted with it. ended: whether the lease must be over, by the server's clock. needed: keys
    whose commands come before all others.

    Returns what the server said of commands that failed on what is stored; None: nothing was done. Raises ResponseError
    for a refusal, and, before anything is done, where a needed key is of a wrong type.
    """
    member = member.encode() if isinstance(member, str) else member
    job_key = Job.key_for(member.decode("utf-8", "replace").partition(":")[0])
    with connection.pipeline() as pipeline:
        write(pipeline)
        commands = [words for words, _ in pipeline.command_stack]
    first = [words for words in commands if words[1] in needed]
    others = [words for words in commands if words[1] not in needed]
    counted = chain.from_iterable((len(words), *words) for words in first + others)
    which = "ended" if ended else "held"
    told = (member, which, status, str(len(first)))
    answer = connection.eval(CARRY_OUT, 3, registry, job_key, note, *told, *cast(Any, counted))
    return None if answer is None else [line.decode("utf-8", "replace") for line in cast(list[bytes], answer)]
