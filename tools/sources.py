"""Which files of the checkout are ours, and what to call their tools."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# For programs that import noria: this checkout's own, whatever .venv says.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
CLANG_FORMAT = "clang-format-19"
CLANG_TIDY = "clang-tidy-19"
CLANG = "clang++-19"


def files(*patterns: str) -> list[str]:
    """Paths relative to the root that git tracks or would track, existing ones only."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [path for path in listed if (ROOT / path).is_file()]


def cpp_files() -> list[str]:
    return files("*.cpp", "*.h")
