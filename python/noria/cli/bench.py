"""`noria bench`: the benchmarks of the project."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from rich.console import Console
from rich.table import Table

from noria import _C


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of API.md section 5."""
    parser.add_argument("question", choices=("overlap",), help="what to measure")
    parser.add_argument("--profile", action="append", help="simulated cards; may be given several times")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Runs one benchmark and prints its table."""
    from noria.bench import overlap

    console = Console(file=sys.stdout)
    rows = []
    profiles = tuple(arguments.profile or overlap.PROFILES)
    with Console(file=sys.stderr).status("measuring"):
        rows = list(overlap.rows(profiles))
    if arguments.json:
        print(json.dumps({"rows": [{**dataclasses.asdict(row), "over_bound": row.over_bound} for row in rows]}))
        return 0
    table = Table(
        "card", "shape", "compute:copy", "budget", "bytes in", "allowed", "seconds", "bound", "over bound", "host syncs"
    )
    for row in rows:
        table.add_row(
            row.machine,
            row.shape,
            f"{row.compute_to_copy:g}",
            f"{row.budget} ({_C.format_bytes(row.budget_bytes)})",
            _C.format_bytes(row.bytes_in),
            _C.format_bytes(row.bytes_allowed),
            f"{row.seconds:.6f}",
            f"{row.bound_seconds:.6f}",
            f"{row.over_bound:.4f}",
            str(row.host_syncs),
        )
    console.print(table)
    worst = max((row for row in rows if row.shape == "equal"), key=lambda row: row.over_bound, default=None)
    if worst is not None:
        console.print(f"worst of equal blocks: {worst.over_bound:.4f} times the bound (target 1.03)")
    return 0
