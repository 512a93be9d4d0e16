"""The fleet as rows: workers that live, workers that died of late, and models that nobody serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cli.output import counted, duration

if TYPE_CHECKING:
    from redis import Redis

    from api.schemas import WorkerInfo

COLUMNS = {
    "name": "worker",
    "host": "host",
    "chip": "chip",
    "model": "model",
    "drafter": "drafter",
    "kernels": "kernels",
    "state": "state",
    "request_id": "request",
    "last_seen": "last seen",
    "decode_tps": "tok/s",
    "completed": "completed",
    "deaths": "deaths in a row",
}
MOST_DEAD = 50
"""Dead workers that are shown, the latest."""


def fleet_rows(connection: Redis, model: str | None = None) -> list[dict[str, Any]]:
    """Rows of the live workers by name, then of those that died within a day, the latest first.

    model: of this one alone. Of a dead worker `request_id` is what it ran when it was last seen. `last_seen` is in
    seconds; `deaths` are those in a row of the worker's machine, as they count (api/queue/deaths.py).
    """
    from api.queue import deaths
    from api.queue.last_seen import last_seen
    from api.queue.presence import live_workers

    live = live_workers(connection)
    names = {info.name for info in live}
    seen = last_seen(connection)
    ago = {one.info.name: one.seconds_ago for one in seen}
    dead = [one.info for one in seen if one.info.name not in names][:MOST_DEAD]
    found = [info for info in (*live, *dead) if model is None or info.model == model]
    rows = deaths.rows(connection, {info.host for info in found})
    return [
        {
            **info.model_dump(mode="json", exclude={"tail"}),
            "state": info.state if info.name in names else "dead",
            "last_seen": ago.get(info.name),
            "deaths": rows[info.host].in_a_row,
        }
        for info in found
    ]


def shown_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the table has it."""
    seconds = row["last_seen"]
    return {**row, "last_seen": None if seconds is None else f"{duration(seconds)} ago"}


def unserved(demand: Mapping[str, int], live: Sequence[WorkerInfo]) -> list[str]:
    """A sentence for each model for which requests wait while no worker takes any. demand: requests that wait."""
    whys = {model: no_server(model, live) for model in sorted(demand)}
    return [f"{counted(demand[model], 'request')} for {model}: {why}" for model, why in whys.items() if why]


def no_server(model: str, live: Sequence[WorkerInfo]) -> str | None:
    """Why nobody serves a model, and the way out; None where somebody does."""
    if any(info.serves for info in live if info.model == model):
        return None
    states = [info.state for info in live if info.model == model]
    idle_on_purpose = [f"{states.count(state)} {state}" for state in ("pausing", "paused", "out") if state in states]
    if idle_on_purpose:
        return (
            f"no worker takes requests of {model} ({', '.join(idle_on_purpose)}); let them: "
            f"cidermill worker resume --all --model {model}"
        )
    return f"no live worker serves {model}; start one: cidermill worker --model {model}"
