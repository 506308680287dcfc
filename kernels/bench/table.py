"""The tables of kernels/README.md, from files of results.

A row of ours is behind a library if in three of four rounds in which both ran its time was longer than the library's by
more than the same kernel measured twice in the same run came apart.
"""

import json
from pathlib import Path
from typing import Any

START, STOP = "<!-- results: written by `python -m kernels.bench table` -->", "<!-- end of results -->"
CONTROL, ITSELF = "one kernel twice", "itself"  # work and library of the rows that say how far apart two measures come


def tables(paths: list[Path]) -> str:
    """Markdown: where and when, then every result with a target, then the rest."""
    documents = [json.loads(path.read_text()) for path in paths]
    # A later file replaces what an earlier one measured of the same work.
    rows = list(
        {
            (row["op"], row["backend"], _shape(row)): row for document in documents for row in document["results"]
        }.values()
    )
    head = "".join(_head(document) for document in documents)
    aimed = [row for row in rows if row["target_us"]]
    met = sum(row["us"] <= row["target_us"] for row in aimed)
    noise = max((abs(row["ratio"][ITSELF]["middle"] - 1) for row in rows if row["op"] == CONTROL), default=None)
    rows = [row for row in rows if row["op"] != CONTROL]
    text = f"{head}\nTargets met: {met} of {len(aimed)}.\n"
    text += _comparison(rows, noise)
    text += _table(
        ["work", "shape", "us", "target", "met", "of the limit", "others (us)", "ours / best"],
        [
            [
                row["op"], _shape(row), f"{row['us']:.1f}", f"{row['target_us']:.1f}",
                "yes" if row["us"] <= row["target_us"] else "no", _fraction(row), _baseline(row), _best(row),
            ]
            for row in aimed
        ],
    )  # fmt: skip
    text += "\nEverything else:\n\n"
    return text + _table(
        ["work", "backend", "shape", "us", "TFLOP/s", "GB/s", "of the limit", "others (us)", "ours / best"],
        [
            [
                row["op"], row["backend"], _shape(row), f"{row['us']:.1f}", f"{row['tflops']:.0f}",
                f"{row['gbps']:.0f}", _fraction(row), _baseline(row), _best(row),
            ]
            for row in rows
            if not row["target_us"]
        ],
    )  # fmt: skip


def rewrite(readme: Path, paths: list[Path]) -> None:
    """Replace what stands between the marks of `readme`."""
    text = readme.read_text()
    before, rest = text.split(START)
    after = rest.split(STOP)[1]
    readme.write_text(f"{before}{START}\n\n{tables(paths)}\n{STOP}{after}")


def _head(document: dict[str, Any]) -> str:
    """Where and when, and the limits that this file's fractions are of."""
    machine, limits = document["machine"], document["limits"]
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items() if version != "absent")
    return (
        f"- `{document['command']}`: {machine['name']}, {document['date']}, driver {machine['driver_version']}, "
        f"SM clock {machine['clocks.sm']} at the end; {versions}. Limits measured in the same run: "
        f"{limits['bytes_per_s'] / 1e12:.2f} TB/s, {limits['bf16_flops'] / 1e12:.0f} TFLOP/s bf16, "
        f"{limits['fp8_flops'] / 1e12:.0f} TFLOP/s FP8 (cuBLAS).\n"
    )


def _comparison(rows: list[dict[str, Any]], noise: float | None) -> str:
    """How many rows stand beside a library, and which are behind one; without a control the noise is not known."""
    compared = [row for row in rows if row.get("ratio")]
    behind = [row for row in compared if max(ratio["low"] for ratio in row["ratio"].values()) > 1 + (noise or 0.0)]
    control = "was not measured twice" if noise is None else f"measured twice came {100 * noise:.1f} % apart"
    text = (
        f"\nRows measured in turns with a library: {len(compared)}; behind the best one: {len(behind)}"
        f" (one kernel {control}).\n"
    )
    if behind:
        text += "".join(f"- {row['op']}, {_shape(row)}: {_best(row)}\n" for row in behind)
    return text + "\n"


def _best(row: dict[str, Any]) -> str:
    """Our time over the fastest library's, with the quartiles of its rounds."""
    ratios = row.get("ratio", {})
    if not ratios:
        return ""
    worst = max(ratios.values(), key=lambda ratio: ratio["middle"])
    return f"{worst['middle']:.3f} ({worst['low']:.3f} to {worst['high']:.3f})"


def _fraction(row: dict[str, Any]) -> str:
    return f"{row['fraction_of_limit']:.2f}" if row["fraction_of_limit"] else ""


def _shape(row: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in row["shape"].items())


def _baseline(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {us:.1f}" for name, us in row["baseline"].items())


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
