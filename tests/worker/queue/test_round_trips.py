"""How often a worker waits for Redis per request: at 5 ms to the server, each time costs as much as all of Python."""

from pathlib import Path
from typing import Any

import pytest
from redis.connection import AbstractConnection

from tests.worker.queue.conftest import Station
from tests.worker.queue.test_upkeep import work_until_the_second_has_started
from tests.worker.scripted_engine import ScriptedEngine

GENERATES = b"the engine"


def test_a_request_costs_seven_round_trips(station: Station, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    send, generate = AbstractConnection.send_packed_command, ScriptedEngine.generate

    def noted_send(self: AbstractConnection, command: Any, check_health: bool = True) -> Any:
        sent.append(command if isinstance(command, bytes) else b"".join(command))
        return send(self, command, check_health)

    def noted_generate(self: ScriptedEngine, *arguments: Any, **named: Any) -> Any:
        sent.append(GENERATES)
        return generate(self, *arguments, **named)

    station.enqueue("one", "two")
    monkeypatch.setattr(AbstractConnection, "send_packed_command", noted_send)
    monkeypatch.setattr(ScriptedEngine, "generate", noted_generate)
    work_until_the_second_has_started(station, tmp_path, lambda: None)
    first, second = (place for place, command in enumerate(sent) if command == GENERATES)
    # Its result; the end of its lease; taking the next one; its lease; its start; its attempt; word of its start.
    assert second - first - 1 == 7, sent[first:second]
