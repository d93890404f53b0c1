"""`noria doctor`: what this machine offers, what was chosen and why."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

import noria
from noria import _C, conformance
from noria.cli import values
from noria.device.report import describe, machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", type=values.device, help="one device, e.g. cuda:0; default: every device that can be used"
    )
    parser.add_argument("--conformance", action="store_true", help="run the backend contract against the device")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Prints the report. Status 1 when a check of the contract failed."""
    if values.is_simulated(arguments.device):
        values.simulate(arguments.device)
    report = collect(arguments.device, with_conformance=arguments.conformance)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        show(report, Console(file=sys.stdout))
    failed = [
        finding for device in report["devices"] for finding in device.get("conformance", []) if not finding["passed"]
    ]
    return 1 if failed else 0


def collect(device: str | None = None, *, with_conformance: bool = False) -> dict[str, Any]:
    """The report as data: that of `noria.device.report.machine()`, with `conformance` findings per device on demand."""
    report = machine()
    report["noria"] = noria.__version__
    if device is not None:
        report["devices"] = [describe(device)]
    if with_conformance:
        for entry in report["devices"]:
            if "error" not in entry:
                entry["conformance"] = [vars(finding) for finding in conformance.check(entry["device"])]
    return report


def show(report: dict[str, Any], console: Console) -> None:
    console.print(f"noria {report['noria']}, torch {report['torch']}")
    others = [name for name in report["usable"] if name != report["chosen"]]
    reason = "the best device that can be used" + (f"; also there: {', '.join(others)}" if others else "; the only one")
    console.print(f"chosen without --device: [bold]{report['chosen']}[/bold] ({reason})")
    for entry in report["devices"]:
        console.print()
        _show_device(entry, console)


def _show_device(entry: dict[str, Any], console: Console) -> None:
    if "error" in entry:
        console.print(f"[bold]{entry['device']}[/bold]: {entry['error']}")
        return
    memory = entry["memory"]
    free = ""
    if memory is not None:
        free = f", {_C.format_bytes(memory['free_bytes'])} of {_C.format_bytes(memory['total_bytes'])} free"
    console.print(f"[bold]{entry['device']}[/bold] (served by {entry['served_by']}{free})")
    table = Table("capability", "", "why not", box=None, pad_edge=False)
    for name, on in entry["capabilities"].items():
        table.add_row(name, "yes" if on else "no", entry["why_not"].get(name, ""))
    console.print(table)
    if "conformance" in entry:
        _show_findings(entry["conformance"], console)


def _show_findings(findings: list[dict[str, Any]], console: Console) -> None:
    failed = [finding for finding in findings if not finding["passed"]]
    console.print(f"contract: {len(findings) - len(failed)} of {len(findings)} checks passed")
    for finding in failed:
        console.print(f"  [bold]{finding['check']}[/bold]")
        console.print(f"    expected: {finding['expected']}", markup=False)
        console.print(f"    found:    {finding['found']}", markup=False)
        console.print(f"    remedy:   {finding['remedy']}", markup=False)
