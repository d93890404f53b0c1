"""`noria bench`: the benchmarks of the project."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from rich.console import Console
from rich.table import Table

from noria import _C
from noria.cli import values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of API.md section 5."""
    parser.add_argument("question", choices=("overlap", "overhead", "disk"), help="what to measure")
    parser.add_argument(
        "--profile", type=values.profile, action="append", help="simulated cards; may be given several times"
    )
    parser.add_argument("--gib", type=values.positive_number, default=4.0, help="disk: GiB of weights; default 4")
    parser.add_argument(
        "--rounds", type=values.positive_int, default=1, help="disk: turns of each contender; default 1"
    )
    parser.add_argument("--folder", help="disk: where to write, with three times as much free; default: the system's")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Runs one benchmark and prints its table."""
    if arguments.question == "overhead":
        return _overhead(arguments)
    if arguments.question == "disk":
        return _disk(arguments)
    return _overlap(arguments)


def _disk(arguments: argparse.Namespace) -> int:
    from noria.bench import disk

    with Console(file=sys.stderr).status("measuring"):
        rows = disk.measure(arguments.gib, arguments.rounds, arguments.folder)
    if arguments.json:
        print(json.dumps(disk.as_data(rows)))
        return 0
    table = Table("contender", "cache", "seconds", "GB/s", "peak memory", "CPU s/GiB")
    for row in rows:
        table.add_row(
            row.contender,
            row.state,
            f"{row.seconds:.3f}",
            f"{row.gb_per_second:.2f}",
            _C.format_bytes(row.peak_rss_bytes),
            f"{row.cpu_seconds_per_gib:.2f}",
        )
    _console().print(table)
    return 0


def _console() -> Console:
    console = Console(file=sys.stdout)
    # In a pipe there is no width to keep to, and figures must not be cut.
    return console if console.is_terminal else Console(file=sys.stdout, width=160)


def _overhead(arguments: argparse.Namespace) -> int:
    from noria.bench import overhead

    rows = overhead.rows()
    if arguments.json:
        print(json.dumps({"rows": [dataclasses.asdict(row) for row in rows]}))
        return 0
    table = Table("host time", "microseconds", "target")
    for row in rows:
        table.add_row(row.what, f"{row.microseconds:.2f}", f"{row.target:g}")
    _console().print(table)
    return 0


def _overlap(arguments: argparse.Namespace) -> int:
    from noria.bench import overlap

    console = _console()
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
