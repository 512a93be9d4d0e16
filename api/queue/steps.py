"""Transactions that a full server does not refuse: a worker must be able to finish what it has, or nothing gets free.

A server at its memory limit refuses every command within MULTI, and of a script the first command if it may grow; a
script that has written something it lets go on. So here a transaction is one script whose first command deletes a key
that does not exist. Commands are run in order, one that fails leaves the others be, and nobody sees a part of them: as
in a transaction. Those with watched keys, and all reading, are left as they are.

What puts requests in is no step: a full server has to refuse it.
"""

from typing import Any, cast

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import OutOfMemoryError, RedisError

NOTHING_KEY = "cidermill:nothing"
"""Never exists. Deleting it is the write after which a script is not refused any more."""

_STEP = f"""
redis.call('DEL', '{NOTHING_KEY}')
local answers, place = {{}}, 1
while ARGV[place] do
  local last, answer = place + tonumber(ARGV[place])
  if ARGV[place + 1] == 'EVAL' then
    local first = place + 4 + tonumber(ARGV[place + 3])
    local fine
    fine, answer = pcall(scripts[tonumber(ARGV[place + 2])], slice(place + 4, first - 1), slice(first, last))
    if not fine and type(answer) == 'string' then answer = {{err = answer}} end
  else
    answer = redis.pcall(unpack(ARGV, place + 1, last))
  end
  answers[#answers + 1] = answer or false
  place = last + 1
end
return answers
"""
_SLICE = """
local function slice(first, last)
  local found = {}
  for place = first, last do found[#found + 1] = ARGV[place] end
  return found
end
local scripts = {}
"""


class Step(Pipeline):
    """A pipeline whose transaction is one script. An EVAL in it becomes a part of that script."""

    def __init__(self, client: Redis, transaction: bool = True, shard_hint: Any = None) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client, self._atomic = client, transaction

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        if self.watching or not self._atomic or not self.command_stack:
            return super().execute(raise_on_error)
        commands = cast(list[tuple[tuple[Any, ...], dict[str, Any]]], self.command_stack)
        try:
            text, arguments = _assembled([words for words, _ in commands])
            answers = cast(list[Any], self._client.eval(text, 0, *arguments))
            if raise_on_error:
                self.raise_first_error(commands, answers)  # type: ignore[no-untyped-call]
            return [self._told(answer, *command) for answer, command in zip(answers, commands, strict=True)]
        finally:
            self.reset()

    def _told(self, answer: Any, words: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """What redis-py makes of the server's answer to this command."""
        options.pop("keys", None)  # for redis-py's cache alone
        if isinstance(answer, Exception) or words[0] not in self.response_callbacks:
            return answer
        return self.response_callbacks[words[0]](answer, **options)


class StepRedis(Redis):
    """A client all of whose transactions are steps."""

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Step:
        return Step(self, transaction, shard_hint)


def refused_as_full(error: RedisError) -> bool:
    """Whether the server has no room for a command."""
    return isinstance(error, OutOfMemoryError) or "OOM command not allowed" in str(error)  # Redis 6.2, of a script


def _assembled(commands: list[tuple[Any, ...]]) -> tuple[str, list[Any]]:
    """The script of these commands, the same for the same scripts in it, and its arguments."""
    scripts: dict[str, int] = {}
    arguments: list[Any] = []
    for words in commands:
        name, *others = words
        if name == "EVAL":
            others[0] = scripts.setdefault(others[0], len(scripts) + 1)
        sent = [*name.split(), *others]
        arguments += [len(sent), *sent]
    functions = [f"scripts[{number}] = function(KEYS, ARGV)\n{text}\nend\n" for text, number in scripts.items()]
    return "".join([_SLICE, *functions, _STEP]), arguments
