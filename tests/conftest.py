"""The order of the tests. `make test` shares them out by file, so the files that take longest come first."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONGEST_FIRST = (
    "worker/engine/test_family_exactness.py",
    "worker/engine/test_smollm2_exactness.py",
    "cli/test_refusals.py",
    "cli/test_fleet.py",
    "cli/test_fleet_server.py",
    "cli/test_run_faults.py",
    "cli/test_config_command.py",
    "worker/engine/drafters/test_drafter_conformance.py",
    "cli/test_profile_option.py",
    "worker/queue/test_hostile_entries.py",
    "cli/test_worker_orders.py",
    "cli/test_expires_option.py",
    "worker/engine/test_exactness_properties.py",
    "worker/engine/test_engine_exactness.py",
    "worker/engine/drafters/test_drafter_families_dense.py",
    "cli/test_bench.py",
    "cli/test_run.py",
    "worker/queue/test_worker_deaths.py",
    "worker/engine/drafters/test_drafter_families_windows.py",
    "worker/engine/drafters/test_drafter_families_recurrent.py",
    "worker/engine/test_kernels_of_an_engine.py",
    "worker/engine/drafters/test_rounds_without_a_draft.py",
    "worker/engine/drafters/test_drafter_families_experts.py",
    "worker/engine/test_kernel_draws.py",
    "bench/test_queue_scale.py",
)
"""About the longest first; some of them compute and some wait for others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {TESTS / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
