"""RQ changes the signatures of methods between releases; an override that kept the old one must fail here."""

import inspect
from collections.abc import Iterator

import pytest
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.queue import Queue
from rq.registry import StartedJobRegistry
from rq.timeouts import BaseDeathPenalty
from rq.worker import SimpleWorker

from api.queue.hardening import SafeJob
from api.queue.leases import LeaseRegistry
from api.queue.safe_queue import Handover, SafeQueue
from worker.books import BookkeepingWorker, GenerationRqJob, NoDeathPenalty
from worker.rq_worker import GenerationWorker

SUBCLASSES: list[tuple[type, type]] = [
    (GenerationWorker, SimpleWorker),
    (BookkeepingWorker, SimpleWorker),
    (GenerationRqJob, Job),
    (SafeJob, Job),
    (SafeQueue, Queue),
    (Handover, IntermediateQueue),
    (LeaseRegistry, StartedJobRegistry),
    (NoDeathPenalty, BaseDeathPenalty),
]

MUST_OVERRIDE = {
    GenerationWorker: {
        "_install_signal_handlers",
        "check_for_suspension",
        "dequeue_job_and_maintain_ttl",
        "execute_job",
        "handle_payload",
        "kill_horse",
        "register_birth",
        "run_maintenance_tasks",
        "teardown",
    },
    BookkeepingWorker: {
        "get_heartbeat_ttl",
        "handle_exception",
        "handle_execution_ended",
        "handle_job_failure",
        "handle_job_success",
        "heartbeat",
        "prepare_job_execution",
        "set_state",
    },
    GenerationRqJob: {"func"},
    SafeJob: {"func", "refresh", "restore", "started_job_registry"},
    SafeQueue: {"acquire_maintenance_lock", "dequeue_any", "intermediate_queue", "started_job_registry"},
    Handover: {"cleanup", "set_first_seen", "should_be_cleaned_up"},
    LeaseRegistry: {"add_execution", "cleanup", "parse_job_id"},
    NoDeathPenalty: {"cancel_death_penalty", "setup_death_penalty"},
}


def _overridden(subclass: type, base: type) -> Iterator[str]:
    for name, value in vars(subclass).items():
        is_method = isinstance(value, property) or callable(getattr(value, "__func__", value))
        if is_method and not isinstance(value, type) and hasattr(base, name) and not name.startswith("__"):
            yield name


def _parameters(owner: type, name: str) -> list[tuple[str, object, object]]:
    found = inspect.getattr_static(owner, name)
    function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(("subclass", "base"), SUBCLASSES, ids=lambda c: c.__name__)
def test_overrides_have_the_signature_of_the_installed_rq(subclass: type, base: type) -> None:
    names = set(_overridden(subclass, base))
    assert names == MUST_OVERRIDE[subclass]
    differing = {name for name in names if _parameters(subclass, name) != _parameters(base, name)}
    # `sig` of kill_horse only has another default; SafeQueue's own defaults are RQ's.
    assert differing - {"kill_horse"} == set()
