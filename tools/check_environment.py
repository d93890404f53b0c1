"""Says which packages of a constraints file the running Python lacks or has in another version.

    .venv/bin/python tools/check_environment.py constraints.txt

Exit status 0 when everything is there. A local version label (`+cpu`) does not count as a difference.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def differences(constraints: str) -> list[str]:
    """One sentence for each pinned package that is missing or has another version."""
    found = []
    for name, wanted in re.findall(r"^([\w.-]+)==([\w.]+)", constraints, flags=re.MULTILINE):
        try:
            installed = version(name).split("+")[0]
        except PackageNotFoundError:
            found.append(f"{name} {wanted} is not installed")
            continue
        if installed != wanted:
            found.append(f"{name} is {installed}, not {wanted}")
    return found


if __name__ == "__main__":
    lines = differences(Path(sys.argv[1]).read_text())
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(1 if lines else 0)
