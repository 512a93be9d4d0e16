"""Time that passes only when a test says so."""


class ToyClock:
    """Seconds; called as `time.monotonic` is."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
