"""Which custom ids a file has used, without keeping them: 12 bytes for each slot of a hash table at most half full.

A dictionary of a million ids takes over 120 MB; this takes 25 MB.
"""

from array import array

_EMPTY = 0
_FIRST_SLOTS = 1 << 10


class SeenIds:
    """First line of each custom id. Ids are told apart by their 64-bit hash, keyed anew in every process."""

    def __init__(self) -> None:
        self._count = 0
        self._allocate(_FIRST_SLOTS)

    def first_line(self, custom_id: str, line: int) -> int | None:
        """The earlier line (from 1) that used this id, else None, and `line` is remembered as its first."""
        digest = hash(custom_id) & 0xFFFF_FFFF_FFFF_FFFF
        slot = self._slot(digest)
        if self._lines[slot] != _EMPTY:
            return self._lines[slot]
        self._digests[slot], self._lines[slot] = digest, line
        self._count += 1
        if 2 * self._count > len(self._lines):
            self._grow()
        return None

    def _slot(self, digest: int) -> int:
        """The slot that holds `digest`, or the free one where it belongs (linear probing)."""
        mask = len(self._lines) - 1
        slot = digest & mask
        while self._lines[slot] != _EMPTY and self._digests[slot] != digest:
            slot = (slot + 1) & mask
        return slot

    def _allocate(self, slots: int) -> None:
        self._digests = array("Q", bytes(8 * slots))
        self._lines = array("I", [_EMPTY]) * slots

    def _grow(self) -> None:
        digests, lines = self._digests, self._lines
        self._allocate(2 * len(lines))
        for digest, line in zip(digests, lines, strict=True):
            if line != _EMPTY:
                slot = self._slot(digest)
                self._digests[slot], self._lines[slot] = digest, line
