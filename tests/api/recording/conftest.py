from collections.abc import Iterator
from pathlib import Path

import pytest
from recording_station import Station


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    station = Station(tmp_path)
    yield station
    station.stop()
