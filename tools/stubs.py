"""Writes the stubs of the built extensions (python/noria/_C.pyi, _sim.pyi), or checks that those kept still fit."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

from sources import ENVIRONMENT, ROOT

EXTENSIONS = ("_C", "_sim")
OUTPUT = ROOT / "build" / "stubs"
HEAD = "# Written by `make stubs` from the extension; do not edit.\n"


def kept_stub(extension: str) -> Path:
    return ROOT / "python" / "noria" / f"{extension}.pyi"


def generate(extension: str) -> str | None:
    """The text of the stub for an extension in python/noria; None when it cannot be made (the reason is printed)."""
    bin_folder = Path(sys.executable).parent
    command = [str(bin_folder / "pybind11-stubgen"), f"noria.{extension}", "--output-dir", str(OUTPUT), "--exit-code"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout + done.stderr)
        return None
    text = HEAD + (OUTPUT / "noria" / f"{extension}.pyi").read_text()
    for words in (["check", "--fix-only", "--quiet"], ["format", "--quiet"]):
        command = [str(bin_folder / "ruff"), *words, "--stdin-filename", str(kept_stub(extension)), "-"]
        text = subprocess.run(command, cwd=ROOT, check=True, input=text, capture_output=True, text=True).stdout
    return text


def fits(extension: str) -> bool:
    built = generate(extension)
    if built is None:
        return False
    path = kept_stub(extension)
    kept = path.read_text() if path.exists() else ""
    if built == kept:
        return True
    name = str(path.relative_to(ROOT))
    print("".join(difflib.unified_diff(kept.splitlines(True), built.splitlines(True), name, "built")))
    print(f"{name} does not describe the extension that was built: run `make stubs` and commit it")
    return False


def check() -> bool:
    found = [fits(extension) for extension in EXTENSIONS]
    return all(found)


def write(extension: str) -> bool:
    stub = generate(extension)
    if stub is not None:
        kept_stub(extension).write_text(stub)
    return stub is not None


if __name__ == "__main__":
    written = [write(extension) for extension in EXTENSIONS]
    sys.exit(0 if all(written) else 1)
