"""Runs the C++ tests (ctest) and the Python tests (pytest), all to the end, and closes with the counts over all.

    .venv/bin/python tools/run_tests.py [arguments for pytest]

The fuzz targets run too, for a bounded number of inputs. NORIA_LONG=1 uses all random seeds, ten times the inputs, and
adds the sanitizer builds and the tests marked long.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import reports
from sources import ENVIRONMENT, ROOT, files

BIN = ROOT / ".venv" / "bin"
# ctest lines for a test that begins, passed or was skipped; the skipped ones are in the counts.
ROUTINE = re.compile(r"^ +Start +\d+: |^ *\d+/\d+ Test +#\d+: .*( Passed |\*\*\*Skipped )")
JOBS = os.environ.get("JOBS", str(os.cpu_count() or 2))


def counts(report: Path) -> dict[str, int]:
    """Passed, failed and skipped of one JUnit file; one failure when it is missing or not whole."""
    try:
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return {"passed": 0, "failed": 1, "skipped": 0}

    def total(*keys: str) -> int:
        return sum(int(suite.get(key, 0)) for suite in suites for key in keys)

    failed = total("failures", "errors")
    skipped = total("skipped", "disabled")
    return {"passed": total("tests") - failed - skipped, "failed": failed, "skipped": skipped}


def run(name: str, report: Path, command: list[str]) -> dict[str, int]:
    """Runs one test runner. A runner that fails without a failed test (nothing ran, a crash) is one failure itself."""
    report.unlink(missing_ok=True)
    report.parent.mkdir(parents=True, exist_ok=True)
    print(f"== {name}", flush=True)
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not ROUTINE.search(line):
                print(line, end="", flush=True)
    status = process.returncode
    found = counts(report)
    if status != 0 and found["failed"] == 0:
        print(f"{name} exited with {status}", flush=True)
        found["failed"] = 1
    reports.write(name, **found)
    return found


def ctest(preset: str) -> dict[str, int]:
    report = reports.FOLDER / f"ctest-{preset}.xml"
    command = [str(BIN / "ctest"), "--preset", preset, "--parallel", JOBS, "--no-tests=error"]
    return run(f"ctest-{preset}", report, [*command, "--output-junit", str(report)])


def pytest(arguments: list[str]) -> dict[str, int]:
    report = reports.FOLDER / "pytest.xml"
    command = [str(BIN / "python"), "-m", "pytest", "-n", JOBS, f"--junitxml={report}", *arguments]
    return run("pytest", report, command)


def fuzz(runs: int) -> dict[str, int]:
    """Every fuzz target over its corpus and `runs` new inputs: one test, passed when nothing was found."""
    print("== fuzz", flush=True)
    command = [str(ROOT / "tools" / "fuzz.sh")]
    done = subprocess.run(command, cwd=ROOT, env={**ENVIRONMENT, "FUZZ_RUNS": str(runs)}, check=False)
    found = {"passed": int(done.returncode == 0), "failed": int(done.returncode != 0), "skipped": 0}
    reports.write("fuzz", **found)
    return found


def main(arguments: list[str]) -> int:
    every = [ctest("dev"), pytest(arguments)]
    long = os.environ.get("NORIA_LONG") == "1"
    if files("tests/*_fuzz.cpp"):
        every.append(fuzz(1_000_000 if long else 100_000))
    if long:
        for preset in ("asan", "tsan"):
            subprocess.run([str(ROOT / "tools" / "build.sh"), preset], cwd=ROOT, check=True)
            every.append(ctest(preset))
    total = {key: sum(found[key] for found in every) for key in ("passed", "failed", "skipped")}
    reports.write("test", **total)
    print(reports.line(total))
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
