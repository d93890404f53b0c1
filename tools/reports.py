"""The counts that checks and tests leave in build/reports, and their sum, which is how `.ci/run` ends.

    .venv/bin/python tools/reports.py lint test

prints one line for each and `N passed, N failed, N skipped` over all; a report that is missing counts as one failure.
"""

from __future__ import annotations

import json
import sys

from sources import ROOT

FOLDER = ROOT / "build" / "reports"


def write(name: str, *, passed: int, failed: int, skipped: int) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps({"passed": passed, "failed": failed, "skipped": skipped}))


def total(names: list[str]) -> dict[str, int]:
    """The sum over the named reports."""
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for name in names:
        path = FOLDER / f"{name}.json"
        counts = json.loads(path.read_text()) if path.exists() else {"passed": 0, "failed": 1, "skipped": 0}
        for key in total:
            total[key] += counts[key]
    return total


def line(counts: dict[str, int]) -> str:
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"


if __name__ == "__main__":
    for report in sys.argv[1:]:
        print(f"{report}: {line(total([report]))}")
    print(line(total(sys.argv[1:])))
