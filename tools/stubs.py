"""Writes python/noria/_C.pyi from the built extension, or checks that the one in the repository still fits it."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

from sources import ENVIRONMENT, ROOT

STUB = ROOT / "python" / "noria" / "_C.pyi"
OUTPUT = ROOT / "build" / "stubs"
HEAD = "# Written by `make stubs` from the extension; do not edit.\n"


def generate() -> str | None:
    """The text of the stub for the extension in python/noria; None when it cannot be made (the reason is printed)."""
    bin_folder = Path(sys.executable).parent
    command = [str(bin_folder / "pybind11-stubgen"), "noria._C", "--output-dir", str(OUTPUT), "--exit-code"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout + done.stderr)
        return None
    text = HEAD + (OUTPUT / "noria" / "_C.pyi").read_text()
    for words in (["check", "--fix-only", "--quiet"], ["format", "--quiet"]):
        command = [str(bin_folder / "ruff"), *words, "--stdin-filename", str(STUB), "-"]
        text = subprocess.run(command, cwd=ROOT, check=True, input=text, capture_output=True, text=True).stdout
    return text


def check() -> bool:
    built = generate()
    if built is None:
        return False
    kept = STUB.read_text() if STUB.exists() else ""
    if built == kept:
        return True
    print("".join(difflib.unified_diff(kept.splitlines(True), built.splitlines(True), "python/noria/_C.pyi", "built")))
    print("python/noria/_C.pyi does not describe the extension that was built: run `make stubs` and commit it")
    return False


if __name__ == "__main__":
    stub = generate()
    if stub is None:
        sys.exit(1)
    STUB.write_text(stub)
