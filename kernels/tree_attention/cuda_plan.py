"""The division of a problem for CUDA: the one that should take the least time."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.tree_attention.plan import Extent, Plan, Shape

MULTIPROCESSORS = 132
ROWS = 16  # of a tile: what the tensor cores multiply at once
STAGE = 64  # columns that a block has at a time
MERGE_THREADS = 256
# Tiles of a block, and the warps of each, which share the columns of a stage. Few kinds, for each is compiled.
WARPS_OF_A_TILE = {1: 4, 2: 4, 4: 2, 6: 1}
# Of an H100 or H200: what one multiprocessor loads (bytes) and multiplies (flops) in a microsecond, and what memory
# gives to all of them. A block asks for one and a half stages at a time, which come after LATENCY microseconds.
LOADED, MULTIPLIED, MEMORY, LATENCY = 60_000, 2_500_000, 4_000_000, 1.2
# Microseconds of a walk before its first column, of a stage however small, of a merge however small.
START, LEAST_STAGE, LEAST_MERGE = 2.0, 0.6, 3.0
MERGED = 3_000_000  # bytes of sums, written and read again, in a microsecond


def plan(extent: Extent, head_size: int) -> Plan:
    """A context in one span is written out by the walk itself; where it is split, a merge follows."""
    _, tiles, splits = min(candidates(extent, head_size))
    return divided(extent, head_size, tiles, splits)


def divided(extent: Extent, head_size: int, tiles: int, splits: int) -> Plan:
    """tiles: of a block. splits: of the columns, at most."""
    blocks = -(-extent.rows // (ROWS * tiles))
    span = _span(extent.columns, splits)
    splits = -(-extent.columns // span)
    warps = WARPS_OF_A_TILE[tiles]
    threads = tiles * warps * 32
    walk = Shape(
        template=(("TILES", tiles), ("PARTS", warps)),
        grid=(blocks * threads, extent.groups, splits),
        group=threads,
        defines=_defines(threads, _blocks_at_once(threads, head_size)),
        shared_bytes=shared_bytes(tiles, head_size),
    )
    merge = Shape(
        template=(),
        grid=(extent.groups * extent.rows * MERGE_THREADS, 1, 1),
        group=MERGE_THREADS,
        defines=_defines(MERGE_THREADS, 1),
        shared_bytes=0,
    )
    return Plan(extent, span, splits, walk, merge)


def candidates(extent: Extent, head_size: int) -> Iterator[tuple[float, int, int]]:
    """Microseconds that it should take, tiles of a block, splits of the context."""
    own = -(-extent.rows // ROWS)
    enough = next((tiles for tiles in WARPS_OF_A_TILE if tiles >= own), max(WARPS_OF_A_TILE))
    yield microseconds(extent, head_size, 1, 1), 1, 1
    for tiles in WARPS_OF_A_TILE:
        if tiles > enough:
            break
        at_once = _blocks_at_once(tiles * WARPS_OF_A_TILE[tiles] * 32, head_size)
        most = min(at_once * MULTIPROCESSORS // (extent.groups * -(-own // tiles)), -(-extent.columns // ROWS))
        for splits in {most, most * 3 // 4, most // 2, most // 3, most // 4, most // 8, -(-extent.columns // STAGE)}:
            if 1 < splits <= most:
                yield microseconds(extent, head_size, tiles, splits), tiles, splits


def microseconds(extent: Extent, head_size: int, tiles: int, splits: int) -> float:
    """An estimate, of use to compare divisions."""
    blocks = extent.groups * -(-extent.rows // (ROWS * tiles)) * splits
    of_each = -(-blocks // MULTIPROCESSORS)
    at_once = _blocks_at_once(tiles * WARPS_OF_A_TILE[tiles] * 32, head_size)
    span = _span(extent.columns, splits)
    column = 4 * head_size  # bytes of its key and value; 2 flops for each of their elements and each row
    asked = min(of_each, at_once) * 1.5 * STAGE * column / LATENCY
    walk = max(
        of_each * span * column / min(LOADED, asked),
        of_each * span * column * tiles * ROWS / MULTIPLIED,
        -(-of_each // at_once) * -(-span // STAGE) * LEAST_STAGE,
        extent.groups * extent.columns * column / MEMORY,
    )
    sums = extent.groups * extent.rows * splits * head_size * 8  # float32, written and read
    return START + walk + (LEAST_MERGE + sums / MERGED if splits > 1 else 0.0)


def shared_bytes(tiles: int, head_size: int) -> int:
    """Two stages of keys and of values, the queries, and the ancestors; a row has eight elements of padding."""
    return (4 * STAGE + tiles * ROWS) * (head_size + 8) * 2 + 128


def _blocks_at_once(threads: int, head_size: int) -> int:
    """Of a multiprocessor: as many as its registers hold, 128 a thread for heads up to 128 and twice that above."""
    return 2 if head_size <= 128 and threads <= 256 else 1


def _span(columns: int, splits: int) -> int:
    return -(-columns // (splits * ROWS)) * ROWS  # of one length, as the longest decides


def _defines(threads: int, blocks: int) -> str:
    return f"#define ATTENTION_THREADS {threads}\n#define ATTENTION_BLOCKS {blocks}\n"
