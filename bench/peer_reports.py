"""Which of the reported faults does each offloader show? Runs the report tests on ours and on Diffusers' own.

Every test runs in a process of its own, on the simulated device with the order checker on `raise`. Prints a Markdown
table, the one of docs/reports.md; `--json` prints the same as one object.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import re
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests" / "python" / "engine"
TIMEOUT_SECONDS = 120
OFFLOADERS = ("noria", "diffusers")


def run_one(name: str, module: str, offloader: str, answers: Any) -> None:
    """One test, all its cases; answers with how many there are and how the failing ones failed."""
    import pytest

    class Collect:
        def __init__(self) -> None:
            self.cases = 0
            self.failures: dict[str, str] = {}

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" and not report.skipped:
                self.cases += 1
            if report.failed:
                case = re.search(r"\[(.*)\]", report.nodeid)
                crash = getattr(report.longrepr, "reprcrash", None)
                message = crash.message if crash is not None else str(report.longrepr)
                self.failures.setdefault(case[1] if case else "", message)

    os.environ["NORIA_OFFLOADER"] = offloader
    collected = Collect()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main([f"{TESTS / module}.py::{name}", "-q", "-p", "no:cacheprovider"], plugins=[collected])
    answers.send((collected.cases, collected.failures))


def judge(name: str, module: str, offloader: str) -> tuple[int, dict[str, str]]:
    """As `run_one`, from outside; a crash or a hang is a failure."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=run_one, args=(name, module, offloader, theirs))
    process.start()
    theirs.close()
    try:
        if ours.poll(TIMEOUT_SECONDS):
            return ours.recv()
        return 1, {"": f"no end after {TIMEOUT_SECONDS} s"}
    except EOFError:
        process.join()
        return 1, {"": f"the process died ({process.exitcode})"}
    finally:
        process.kill()
        process.join()


def kind(message: str) -> str:
    """A failure in a few words."""
    first = message.splitlines()[0] if message else ""
    if "race on" in message or "Race(" in message:
        return "race"
    if "differs by" in message:
        return "wrong values" + (" (nan)" if "nan" in message else "")
    if "_reports.py" in message and "assert" in message:
        return first
    error = re.match(r"([\w.]+(?:Error|Exception|Interrupt))\b:? ?(.*)", first)
    if error:
        return f"{error[1].rsplit('.', 1)[-1]}: {error[2]}"
    return first


def cell(cases: int, failures: dict[str, str]) -> str:
    """What a table says of one offloader."""
    if not failures:
        return "passes"
    reasons = sorted({shorten(kind(message)) for message in failures.values()})
    share = f"{len(failures)} of {cases}: " if cases > 1 else ""
    return "**fails**, " + share + "; ".join(reasons)


def shorten(text: str, limit: int = 90) -> str:
    text = re.sub(r"0x[0-9a-f]+", "0x..", text).replace("|", "/")
    return text if len(text) <= limit else text[: limit - 3] + "..."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    parser.add_argument("-k", default="", help="only tests whose name or file contains this")
    parser.add_argument("--offloader", choices=OFFLOADERS, action="append", help="default: both")
    arguments = parser.parse_args()
    sys.path[:0] = [str(TESTS)]
    import diffusers
    import diffusers.hooks.group_offloading
    import test_adapter_reports  # noqa: F401  (fills the table)
    import test_disk_reports  # noqa: F401
    import test_offload_reports  # noqa: F401
    import torch
    from reports import REPORTS

    import noria

    wanted = arguments.offloader or OFFLOADERS
    versions = {"noria": noria.__version__, "diffusers": diffusers.__version__}
    rows = []
    for name, report in REPORTS.items():
        if arguments.k not in f"{report.module}.{name}":
            continue
        results = {offloader: judge(name, report.module, offloader) for offloader in wanted}
        rows.append({"number": report.number, "source": report.source, "expected": report.expected, "test": name,
                     "results": {who: {"cases": cases, "failures": failures}
                                 for who, (cases, failures) in results.items()}})  # fmt: skip
        if sys.stderr.isatty():
            print(name, {who: len(failures) for who, (_, failures) in results.items()}, file=sys.stderr)
    if arguments.json:
        print(json.dumps({"torch": torch.__version__, "versions": versions, "rows": rows}))
        return 0
    print("| row | report | expected | " + " | ".join(f"{who} {versions[who]}" for who in wanted) + " |")
    print("|---" * (3 + len(wanted)) + "|")
    for row in rows:
        cells = [cell(row["results"][who]["cases"], row["results"][who]["failures"]) for who in wanted]
        print(f"| {row['number']} | {row['source']} | {row['expected']} | " + " | ".join(cells) + " |")
    totals = {who: sum(not row["results"][who]["failures"] for row in rows) for who in wanted}
    print(f"\n{', '.join(f'{who} passes {count} of {len(rows)} rows' for who, count in totals.items())}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
