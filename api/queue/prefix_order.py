"""The order in which the requests of one queue are served: those that share a beginning one after the other.

A worker's engine keeps what it computed of its last prompts, so one that begins like the last one costs less. Where
several batches, or several kinds of prompt in one batch, lie mixed in a queue, this rule brings them together again:

1. A request that was taken before, and lies at the head because its worker handed it back or died, is taken at once.
2. Else, of the first ROUND requests, a worker takes the one that shares the longest beginning with the one it took last
   (api/queue/prefix_key.py), and of several that share as much, the first. Where none shares more than the head does,
   it takes the head. So requests of equal beginnings stay in order, and one kind alone is served in order.
3. A round begins with the first request that is passed over. It counts down with every request that is taken by rule 2,
   and nobody looks beyond what is left of it. It is over when all of it is taken, or nobody who was passed over waits.
   ROUND_SECONDS after its begin no more are passed over: the head is taken until it is over.

It follows that a request is passed over at most ROUND - 1 times in all, and only within ROUND_SECONDS of the first
time: whoever is passed over belongs to the round, and the round lasts until it is taken.

Priorities have queues of their own, and come first. All of this happens on the server, in the step that takes the
request: no request is in two places or in none, whatever dies. The round is a small hash beside the list, there while
somebody who was passed over waits. If it is lost, or forged, a new round begins.

A worker that has to change to another beginning takes the head, also where another worker is at that kind already. To
look for a kind of its own would pass over requests for little: kinds that are mixed part among the workers by
themselves, since each stays with the one it has.
"""

from dataclasses import dataclass

from api.queue.prefix_key import LONGEST_KEY, PREFIX_FIELD, RUNG_CHARACTERS
from api.queue.steps import NOTHING_KEY

ROUND = 64
ROUND_SECONDS = 600
KEEP_SECONDS = 24 * 3600
"""Of a round whose queue nobody asks any more."""

TAKE_IN_ORDER = f"""
local function shared_with(own, id)
  local key = 'rq:job:' .. id
  local size = redis.pcall('HSTRLEN', key, '{PREFIX_FIELD}')
  if type(size) ~= 'number' or size == 0 or size > {LONGEST_KEY} then return 0 end
  local other, count = redis.call('HGET', key, '{PREFIX_FIELD}'), 0
  while count < #own and string.sub(own, count + 1, count + {RUNG_CHARACTERS}) ==
    string.sub(other, count + 1, count + {RUNG_CHARACTERS}) do count = count + {RUNG_CHARACTERS} end
  return count
end

local function move(list, intermediate, id)
  redis.call('DEL', '{NOTHING_KEY}') -- a full server refuses a script that begins with what grows
  redis.call('RPUSH', intermediate, id) -- before it leaves the list: this fails where the key is a forged one
  redis.call('LREM', list, 1, id)
  local key = 'rq:job:' .. id
  if redis.call('TYPE', key).ok == 'hash' then redis.call('HSET', key, 'taken', 1) end
  return id
end

local function take_in_order(list, intermediate, round, own, size, seconds)
  local ids = redis.call('LRANGE', list, 0, size - 1)
  if #ids == 0 then
    redis.call('DEL', round)
    return nil
  end
  local before = redis.pcall('HSTRLEN', 'rq:job:' .. ids[1], 'taken')
  if type(before) == 'number' and before > 0 then return move(list, intermediate, ids[1]) end
  local now = tonumber(redis.call('TIME')[1])
  local state = redis.pcall('HMGET', round, 'left', 'passed', 'since')
  local left, passed, since = tonumber(state[1]), tonumber(state[2]), tonumber(state[3])
  local going_on = left and passed and since and passed >= 1 and passed <= left and left <= size
  if not going_on then left, passed, since = size, 0, now end
  local best, most = 1, 0
  if own ~= '' and now >= since and now < since + seconds then
    most = shared_with(own, ids[1])
    for place = 2, math.min(left, #ids) do
      if most == #own then break end
      local shared = shared_with(own, ids[place])
      if shared > most then best, most = place, shared end
    end
  end
  local id = move(list, intermediate, ids[best])
  if best > passed then passed = best - 1 else passed = passed - 1 end
  redis.call('DEL', round)
  if passed > 0 and #ids > 1 then
    redis.call('HSET', round, 'left', left - 1, 'passed', passed, 'since', since)
    redis.call('EXPIRE', round, {KEEP_SECONDS})
  end
  return id
end
"""
"""take_in_order(list, intermediate list, round, key of what the worker took last, ROUND, ROUND_SECONDS): the id that it
has moved, or nil."""


@dataclass
class TakenLast:
    """The key of the request that a worker took last, over all of its queues."""

    key: str = ""


def round_key(queue_name: str) -> str:
    return f"cidermill:round:{queue_name}"
