"""Formats every C++ and Python file of ours in place."""

from __future__ import annotations

import subprocess

from sources import CLANG_FORMAT, ROOT, cpp_files

ruff = str(ROOT / ".venv" / "bin" / "ruff")
subprocess.run([CLANG_FORMAT, "-i", *cpp_files()], cwd=ROOT, check=True)
subprocess.run([ruff, "check", "--fix-only", "--quiet"], cwd=ROOT, check=True)
subprocess.run([ruff, "format", "--quiet"], cwd=ROOT, check=True)
