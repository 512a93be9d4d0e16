"""Adoption: whether speculation with a drafter was measured to be worth it on this machine.

`cidermill bench` leaves a verdict per drafter, by its contents, model and machine. An engine needs a good one for a
wrong pairing, and for any drafter when it adopts only what was measured (see `selection`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from kernels import stored
from worker.engine.loading import Target
from worker.engine.profile import pair_key
from worker.engine.verify.selfcheck import VERSION


@dataclass(frozen=True)
class Adoption:
    """ratio: decode rate over that of plain decoding, None when nothing was decoded. threshold: what it has to reach.

    texts_differ: from mlx-lm's plain decoding, near ties of 16-bit models aside.
    """

    ratio: float | None
    threshold: float
    texts_differ: bool

    @property
    def is_adopted(self) -> bool:
        return not self.texts_differ and self.ratio is not None and self.ratio >= self.threshold

    def __str__(self) -> str:
        rate = "nothing was decoded" if self.ratio is None else f"{self.ratio:.2f} times the rate of plain decoding"
        texts = ", and texts that differ from plain decoding" if self.texts_differ else ""
        verdict = "adopted" if self.is_adopted else "not adopted"
        return f"{rate}{texts}: {verdict} (it takes {self.threshold:.2f} times, and the same texts)"

    @classmethod
    def find(cls, data_dir: Path, target: Target, drafter: str) -> Adoption | None:
        """The verdict on the drafter of this key (`Pairing.key`); None when there is none, or none to be read."""
        try:
            record = stored.read(_path(data_dir, target, drafter))
            if record is None:
                return None
            ratio = None if record["ratio"] is None else float(record["ratio"])
            return cls(ratio, float(record["threshold"]), bool(record["texts_differ"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def store(self, data_dir: Path, target: Target, drafter: str) -> Path:
        """Keep it in place of an earlier one. Raises OSError."""
        path = _path(data_dir, target, drafter)
        stored.write(path, {"key": _key(target, drafter), **asdict(self), "adopted": self.is_adopted})
        return path


def _path(data_dir: Path, target: Target, drafter: str) -> Path:
    return stored.path_of(data_dir / "adoptions", _key(target, drafter))


def _key(target: Target, drafter: str) -> dict[str, str | int]:
    """With another MLX, or another way to verify, another verdict."""
    return {**pair_key(target, drafter), "mlx": version("mlx"), "verification": VERSION}
