"""Orders of an operator: to whom they go, and waiting until they are carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from api.errors import InputError, NotFoundError, QueueError
from cli.output import counted

if TYPE_CHECKING:
    from redis import Redis

    from api.queue.orders import Order
    from api.schemas import WorkerInfo

POLL_SECONDS = 0.2
LEAVING = ("draining", "stopping")


def addressees(
    connection: Redis, order: Order, names: Sequence[str], *, everybody: bool, model: str | None
) -> list[WorkerInfo]:
    """The live workers that are meant; of all, those on their way out only to be drained.

    Raises NotFoundError for a name that none has, and where there are none.
    """
    from api.queue.orders import Order
    from api.queue.presence import live_workers

    live = live_workers(connection)
    if everybody:
        found = [info for info in live if model is None or info.model == model]
        found = [info for info in found if order is Order.DRAIN or info.state not in LEAVING]
        if not found:
            of_model = f" of {model}" if model else ""
            raise NotFoundError(f"there is no live worker{of_model}; cidermill workers shows those there are")
        return found
    by_name = {info.name: info for info in live}
    for name in names:
        if name not in by_name:
            raise NotFoundError(f"no live worker is named {name}; cidermill workers shows the names")
    return [by_name[name] for name in dict.fromkeys(names)]


def give(connection: Redis, workers: Sequence[WorkerInfo], order: Order) -> None:
    """Give the order to all. `work` also lets their machines in again.

    Raises InputError for a worker on its way out, to which there is nothing to say, and QueueError where the Redis
    user may not give orders; then nobody was given one.
    """
    from redis.exceptions import NoPermissionError

    from api.queue import deaths, orders

    for worker in workers:
        if worker.state in LEAVING and order is not orders.Order.DRAIN:
            raise InputError(f"worker {worker.name} is {worker.state} and ends soon; start it again")
    try:
        if order is orders.Order.WORK:
            deaths.end_rows(connection, [worker.host for worker in workers])
        orders.give(connection, [worker.name for worker in workers], order)
    except NoPermissionError as error:
        raise QueueError("this Redis user may not give orders; use the URL of the coordinator") from error


def await_order(
    connection: Redis, names: Iterable[str], order: Order, say: Callable[[str], None]
) -> dict[str, WorkerInfo | None]:
    """Wait until all have done as ordered; what they tell then, None for one that has ended.

    Raises NotFoundError when one dies, or ends for another reason.
    """
    from api.queue.last_seen import last_seen
    from api.queue.orders import Order
    from api.queue.presence import live_workers

    wanted = set(names)
    said = 0
    while True:
        live = {info.name: info for info in live_workers(connection)}
        gone = wanted - live.keys()
        dead = sorted(gone & {seen.info.name for seen in last_seen(connection)})
        lost = dead if order is Order.DRAIN else sorted(gone)
        if lost:
            raise NotFoundError(
                f"{', '.join(lost)} died meanwhile, or ended; what it ran goes to another worker: cidermill workers"
            )
        waiting = {name for name in wanted & live.keys() if not _is_so(live[name], order)}
        if not waiting:
            return {name: live.get(name) for name in wanted}
        if len(waiting) != said:
            say(f"waiting for {counted(len(waiting), 'worker')}")
        said = len(waiting)
        time.sleep(POLL_SECONDS)


def _is_so(info: WorkerInfo, order: Order) -> bool:
    from api.queue.orders import Order

    if order is Order.PAUSE:
        return info.state in ("paused", "out")
    return order is Order.WORK and info.serves
