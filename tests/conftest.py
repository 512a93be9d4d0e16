"""The order of the tests. `make test` shares them out by file, so the files that take longest come first."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONGEST_FIRST = (
    "worker/engine/test_family_exactness.py",
    "worker/engine/test_smollm2_exactness.py",
    "worker/queue/test_hostile_entries.py",
    "worker/engine/drafters/test_drafter_conformance.py",
    "worker/engine/test_exactness_properties.py",
    "worker/engine/test_engine_exactness.py",
    "worker/engine/drafters/test_drafter_families_dense.py",
    "worker/engine/drafters/test_drafter_families_windows.py",
    "worker/engine/drafters/test_drafter_families_recurrent.py",
    "worker/engine/test_kernels_of_an_engine.py",
    "worker/engine/drafters/test_rounds_without_a_draft.py",
    "worker/engine/drafters/test_drafter_families_experts.py",
    "worker/engine/test_kernel_draws.py",
    "bench/test_queue_scale.py",
)
"""All above a quarter of a minute, measured one after the other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {TESTS / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
