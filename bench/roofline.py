"""What do the kernels allow on a Mac? Predicted passes of Qwen3.8-27B's shape at 4 bits; nothing is timed.

Each kernel takes the longer of two times: its bytes at the chip's bandwidth, and its operations at the chip's peaks.
Bytes and operations are those at the head of each Metal text. A pass is every quantised matrix, the attention and the
gated delta rule of every layer, the commit of a path as long as the tree, and the draw of every row with filters.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bench.hybrid_passes import SHAPE
from bench.report import save, table
from kernels.gated_delta_tree.problem import VALUE_COLUMNS
from kernels.qmm.metal import Name
from kernels.tree_attention.metal_plan import THREADS, plan
from kernels.tree_attention.plan import extent

MODEL: dict[str, Any] = SHAPE
BITS, GROUP = 4, 64
ROW_BYTES = 2  # bfloat16
PARAMETER_BYTES = 4 + ROW_BYTES  # of the gates of a head: A_log is float32
CONTEXTS = (64, 2_048, 8_192, 32_768)
ROWS = (1, 16)
LAYERS: int = MODEL["num_hidden_layers"]
ATTENTIONS: int = LAYERS // MODEL["full_attention_interval"]
RECURRENCES: int = LAYERS - ATTENTIONS
TOP_K = 20
LEVELS = 5  # of a draw with top-p or top-k: the most for a type of two bytes, whose low bits are one level less
LEFT_OUT = (
    "Left out: that reads reach about 80 % of a bandwidth (122 of 153 GB/s on an M5, the article of note 1); launches, "
    "norms, convolutions, rotary embeddings, logsumexp and all else that MLX computes; unpacking the bits of a weight, "
    "which is integer work; cores without work, as in the draw, whose row has one threadgroup; re-reads that no cache "
    "serves, and those of tree_attention that one does; and drafting."
)


@dataclass(frozen=True)
class Work:
    """Bytes of memory traffic, operations in matrix products, and other operations."""

    bytes: int
    matrix: int = 0
    vector: int = 0

    def times(self, count: int) -> Work:
        return Work(count * self.bytes, count * self.matrix, count * self.vector)


@dataclass(frozen=True)
class Chip:
    """A GPU at its peaks: bytes a second, cores, cycles a second, and operations a core and cycle."""

    name: str
    variant: Name
    bandwidth: float
    cores: int
    clock: float
    matrix_rate: int
    source: str
    vector_rate: int = 256

    def memory_ms(self, work: Work) -> float:
        return work.bytes / self.bandwidth * 1e3

    def compute_ms(self, work: Work) -> float:
        """A simdgroup does one after the other: it unpacks weights, then multiplies."""
        cycles = work.matrix / self.matrix_rate + work.vector / self.vector_rate
        return cycles / self.cores / self.clock * 1e3

    def ms(self, work: Work) -> float:
        return max(self.memory_ms(work), self.compute_ms(work))


NOTES = (
    "Bandwidths and cores: Apple's announcements, of the largest GPU of each name. Apple publishes no clocks or rates",
    "256 operations a core and cycle, also in simdgroup matrices: Philip Turner, metal-benchmarks, of M1 and M2; "
    "M3 and M4 are assumed to keep it",
    "1: 1578 MHz and 3.76 of 4.04 TFLOPS measured on an M5: michaelstinkerings.org, 'Apple M5 GPU Roofline Analysis' "
    "(2026)",
    "2: 1024 operations a core and cycle in 16-bit tensor products: Taras Zakharko, 'Investigating the GPU Neural "
    "Accelerators on Apple A19/M5' (2025), estimated from an A19",
    "3: 1578 MHz, the figure usually given for the M4 family; 1678 MHz, which a table has for the M4 Max, is 6 % more",
    "4: 1398 MHz, which tables have for the M3 Max, of which an M3 Ultra is two",
    "5: the clock of the M5",
)
CHIPS = (
    Chip("M5", "tensor", 153e9, 10, 1.578e9, 1024, "notes 1 and 2"),
    Chip("M4 Max", "simdgroup", 546e9, 40, 1.578e9, 256, "note 3"),
    Chip("M3 Ultra", "simdgroup", 819e9, 80, 1.398e9, 256, "note 4"),
    Chip("M4 Pro", "simdgroup", 273e9, 20, 1.578e9, 256, "note 3"),
    Chip("M5 Max", "tensor", 614e9, 40, 1.578e9, 1024, "notes 2 and 5"),
)


@dataclass(frozen=True)
class Published:
    """ms of a pass: 1000 / (tok/s) where no more than a speed is told."""

    chip: str
    rows: int
    context: int
    ms: float
    source: str


# Contexts that are not told are taken to be short.
PUBLISHED = (
    Published("M5", 1, 64, 125, "qwen-spec's article: plain, 8.0 tok/s, '125 ms in practice'"),
    Published("M5", 16, 64, 125 * 1.02, "the same: its kernels, 16 tokens cost 1.02 of one"),
    Published("M5", 16, 64, 150, "the same: its whole round, with 13 ms of drafting"),
    Published("M4 Max", 1, 2_150, 1000 / 16.7, "an article on an M4 Max: plain, a community 4-bit build"),
    Published("M4 Max", 1, 64, 1000 / 18.5, "the same: plain, another 4-bit build, which has a head to draft with"),
    Published("M3 Ultra", 1, 128, 1000 / 43.9, "Rapid-MLX 0.13.4: neither the bits told, nor whether a drafter runs"),
    Published("M3 Ultra", 1, 32_768, 1000 / 38.7, "the same"),
    Published("M4 Pro", 1, 64, 1000 / 14.7, "mlx-dspark: plain, 4 bits"),
    Published("M5 Max", 1, 64, 1000 / 33.4, "mlx-vlm, pull request 2014: plain, 4 bits"),
)


@dataclass(frozen=True)
class Matrix:
    """[columns, depth] weights, as many as `count` in a pass."""

    name: str
    depth: int
    columns: int
    count: int


def matrices() -> list[Matrix]:
    """The quantised linear layers of mlx-lm's qwen3_5."""
    hidden, inner = MODEL["hidden_size"], MODEL["intermediate_size"]
    queries = MODEL["num_attention_heads"] * MODEL["head_dim"]
    keys = MODEL["num_key_value_heads"] * MODEL["head_dim"]
    heads = MODEL["linear_num_value_heads"]
    values = heads * MODEL["linear_value_head_dim"]
    convolved = 2 * MODEL["linear_num_key_heads"] * MODEL["linear_key_head_dim"] + values
    return [
        Matrix("mlp gate, up", hidden, inner, 2 * LAYERS),
        Matrix("mlp down", inner, hidden, LAYERS),
        Matrix("attention q and its gate", hidden, 2 * queries, ATTENTIONS),
        Matrix("attention k, v", hidden, keys, 2 * ATTENTIONS),
        Matrix("attention o", queries, hidden, ATTENTIONS),
        Matrix("delta q, k, v", hidden, convolved, RECURRENCES),
        Matrix("delta z", hidden, values, RECURRENCES),
        Matrix("delta a, b", hidden, heads, 2 * RECURRENCES),
        Matrix("delta out", values, hidden, RECURRENCES),
        Matrix("head", hidden, MODEL["vocab_size"], 1),
    ]


def qmm(variant: Name, rows: int, depth: int, columns: int, bits: int = BITS, group: int = GROUP) -> Work:
    """`kernels/qmm`: weights, scales and biases once, x and out once."""
    weights = columns * (depth * bits // 8 + 2 * ROW_BYTES * (depth // group))
    computed = (16 if rows <= 16 else 32) if variant == "tensor" else 8 * -(-rows // 8)
    return Work(
        bytes=weights + rows * (depth + columns) * ROW_BYTES,
        matrix=2 * computed * depth * columns,
        vector=2 * depth * columns,
    )


def tree_attention(nodes: int, context: int, heads: int, groups: int, size: int) -> Work:
    """`kernels/tree_attention`: the cache once for each block of rows; queries and out; partial sums, where there are
    several spans, out and in."""
    columns = context + nodes
    how = plan(extent(nodes, heads, groups, columns, None, 0), size)
    cache = 2 * groups * columns * size * ROW_BYTES
    sums = how.rows * how.splits if how.splits > 1 else 0
    partial = sums * (size + 2) * 4
    return Work(
        bytes=how.walk.grid[0] // THREADS * cache + 2 * partial + 2 * how.rows * size * ROW_BYTES,
        vector=how.rows * (4 * columns * size + columns) + 2 * sums * size,
    )


def tree_outputs(nodes: int, key_heads: int, heads: int, keys: int, values: int) -> Work:
    """`kernels/gated_delta_tree/outputs.metal` over a chain, which has the most pairs of a node and one above it.

    Beside the state once, q, k, v, y and what gates and strengths are made of once, and the parents.
    """
    rows = (2 * key_heads * keys + 2 * heads * values + 2 * heads) * ROW_BYTES + 4
    pairs = nodes * (nodes - 1) // 2
    return Work(
        bytes=4 * heads * values * keys + nodes * rows + heads * PARAMETER_BYTES,
        vector=4 * nodes * heads * values * keys + 4 * pairs * heads * keys * (values // VALUE_COLUMNS),
    )


def commit(tokens: int, key_heads: int, heads: int, keys: int, values: int) -> Work:
    """`kernels/gated_delta_tree/commit.metal`: the state in and out; k, v, what gates are made of and the path once."""
    rows = (key_heads * keys + heads * values + 2 * heads) * ROW_BYTES + 4
    size = 8 * heads * values * keys + tokens * rows + heads * PARAMETER_BYTES
    return Work(bytes=size, vector=5 * tokens * heads * values * keys)


def sample(rows: int, vocabulary: int, levels: int, survivors: int) -> Work:
    """`kernels/sample`: the row for the maximum, for each level of the filters, and for the scores."""
    of_survivors = survivors * (40 + 100)  # each among four neighbours that are cut
    return Work(
        bytes=rows * (levels + 2) * vocabulary * ROW_BYTES, vector=rows * (20 * levels * vocabulary + of_survivors)
    )


def works(variant: Name, rows: int, context: int) -> dict[str, list[Work]]:
    """The work of a pass by kernel, of each call or of calls that are alike."""
    linear = (
        MODEL["linear_num_key_heads"],
        MODEL["linear_num_value_heads"],
        MODEL["linear_key_head_dim"],
        MODEL["linear_value_head_dim"],
    )
    attention = tree_attention(
        rows, context, MODEL["num_attention_heads"], MODEL["num_key_value_heads"], MODEL["head_dim"]
    )
    return {
        "qmm": [qmm(variant, rows, matrix.depth, matrix.columns).times(matrix.count) for matrix in matrices()],
        "tree_attention": [attention.times(ATTENTIONS)],
        "gated_delta_tree outputs": [tree_outputs(rows, *linear).times(RECURRENCES)],
        "gated_delta_tree commit": [commit(rows, *linear).times(RECURRENCES)],
        "sample": [sample(rows, MODEL["vocab_size"], LEVELS, TOP_K)],
    }


def pass_ms(chip: Chip, rows: int, context: int) -> float:
    return sum(chip.ms(work) for calls in works(chip.variant, rows, context).values() for work in calls)


Content = dict[str, Any]


def of_chips() -> Content:
    headings = ["chip", "GB/s", "matrix TFLOPS", "other TFLOPS", "qmm", "clock and rates"]
    rows = [
        [
            chip.name,
            round(chip.bandwidth / 1e9),
            chip.cores * chip.clock * chip.matrix_rate / 1e12,
            chip.cores * chip.clock * chip.vector_rate / 1e12,
            chip.variant,
            chip.source,
        ]
        for chip in CHIPS
    ]
    return {"headings": headings, "rows": rows}


def of_matrices() -> Content:
    variants: tuple[Name, ...] = ("tensor", "simdgroup")
    headings = ["matrix", "K x N", "times", *(f"MB at M = {rows}" for rows in ROWS)]
    headings += [f"GFLOP {variant} at M = {rows}" for variant in variants for rows in ROWS]
    lines: list[list[Any]] = []
    for matrix in matrices():
        moved = [qmm("tensor", rows, matrix.depth, matrix.columns).bytes / 1e6 for rows in ROWS]
        done = [qmm(variant, rows, matrix.depth, matrix.columns) for variant in variants for rows in ROWS]
        shape = f"{matrix.depth} x {matrix.columns}"
        lines.append([matrix.name, shape, matrix.count, *moved, *((one.matrix + one.vector) / 1e9 for one in done)])
    whole = [sum(line[2] * line[place] for line in lines) for place in range(3, len(headings))]
    lines.append(["all of a pass", "", sum(line[2] for line in lines), *whole])
    return {"headings": headings, "rows": lines}


def of_kernels() -> Content:
    """Of all layers. After each time, what bounds it."""
    headings = ["kernel", "context", "rows", "MB", "GFLOP tensor", "GFLOP simdgroup"]
    headings += [f"{chip.name} ms" for chip in CHIPS]
    lines = []
    for kernel in works("tensor", 1, 1):
        for context in CONTEXTS if kernel == "tree_attention" else CONTEXTS[:1]:
            for rows in ROWS:
                calls = {chip.name: works(chip.variant, rows, context)[kernel] for chip in CHIPS}
                flops = [_flops(works(name, rows, context)[kernel]) / 1e9 for name in ("tensor", "simdgroup")]
                times = [_bounded(chip, calls[chip.name]) for chip in CHIPS]
                moved = sum(work.bytes for work in calls["M5"]) / 1e6
                lines.append([kernel, context if kernel == "tree_attention" else "", rows, moved, *flops, *times])
    return {"headings": headings, "rows": lines}


def _flops(calls: list[Work]) -> int:
    return sum(work.matrix + work.vector for work in calls)


def _bounded(chip: Chip, calls: list[Work]) -> str:
    by_memory = sum(chip.memory_ms(work) for work in calls) >= sum(chip.compute_ms(work) for work in calls)
    bound: Literal["memory", "compute"] = "memory" if by_memory else "compute"
    return f"{sum(chip.ms(work) for work in calls):.2f} {bound}"


def of_passes() -> Content:
    one, many = ROWS
    headings = ["chip", "context", f"{one} row ms", f"{many} rows ms", "ratio"]
    lines = []
    for chip in CHIPS:
        for context in CONTEXTS:
            single, tree = (pass_ms(chip, rows, context) for rows in ROWS)
            lines.append([chip.name, context, single, tree, tree / single])
    return {"headings": headings, "rows": lines}


def of_published() -> Content:
    headings = ["chip", "rows", "context", "published ms", "predicted ms", "predicted / published", "published by"]
    chips = {chip.name: chip for chip in CHIPS}
    lines = []
    for one in PUBLISHED:
        predicted = pass_ms(chips[one.chip], one.rows, one.context)
        lines.append([one.chip, one.rows, one.context, float(one.ms), predicted, predicted / one.ms, one.source])
    return {"headings": headings, "rows": lines}


TABLES: dict[str, Callable[[], Content]] = {
    "chips": of_chips,
    "matrices": of_matrices,
    "kernels": of_kernels,
    "passes": of_passes,
    "published": of_published,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    tables = {name: content() for name, content in TABLES.items()}
    for name, content in tables.items():
        print(f"\n## {name}\n\n{table(content['headings'], content['rows'])}")
        if name == "chips":
            print("\n" + "\n".join(f"- {note}" for note in NOTES))
    print(f"\n{LEFT_OUT}")
    if options.save:
        kind = "predicted from formulas, nothing was timed; 'measured' tells where it was computed"
        print(save(options.save, {"kind": kind, "notes": NOTES, **tables, "left_out": LEFT_OUT}))


if __name__ == "__main__":
    main()
