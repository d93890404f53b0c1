"""Every check that needs no run of the code. `make lint` builds first, since some read what the build made.

    .venv/bin/python tools/lint.py [check ...]

Without arguments all checks run, each to its end, so that one call shows everything there is to mend.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import layers
import reports
import stubs
import tidy
from sources import CLANG_FORMAT, ROOT, cpp_files

BIN = ROOT / ".venv" / "bin"


def command(*words: str) -> Callable[[], bool]:
    """A check that is one program: right when it exits with 0."""
    return lambda: subprocess.run(words, cwd=ROOT, check=False).returncode == 0


def clang_format() -> bool:
    return command(CLANG_FORMAT, "--dry-run", "-Werror", *cpp_files())()


CHECKS: dict[str, Callable[[], bool]] = {
    "clang-format": clang_format,
    "ruff": command(str(BIN / "ruff"), "check", "--quiet"),
    "ruff-format": command(str(BIN / "ruff"), "format", "--check", "--quiet"),
    "mypy": command(str(BIN / "mypy"), "--no-error-summary"),
    "layers": layers.check,
    "stubs": stubs.check,
    "clang-tidy": tidy.check,
}


def main(wanted: list[str]) -> int:
    unknown = [name for name in wanted if name not in CHECKS]
    if unknown:
        print(f"no check is called {', '.join(unknown)}; there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted or CHECKS:
        began = time.monotonic()
        right = CHECKS[name]()
        print(f"lint {name}: {'ok' if right else 'FAILED'} ({time.monotonic() - began:.1f} s)", flush=True)
        if not right:
            failed.append(name)
    passed = len(wanted or CHECKS) - len(failed)
    reports.write("lint", passed=passed, failed=len(failed), skipped=0)
    print(f"lint: {passed} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
