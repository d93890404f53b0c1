"""Dependencies point down only: which part of src may include which (the picture is in docs/architecture.md)."""

from __future__ import annotations

import re

from sources import ROOT, files

# A part may include its own headers, those of the parts named here, and include/noria.
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "io": {"core"},
    "format": {"core", "io"},
    "plan": {"core"},
    "sim/runtime": {"core"},
    "device": {"core"},
    "sim/torch": {"core", "sim/runtime", "device"},
    "engine": {"core", "io", "format", "plan", "device"},
    "bindings": {"core", "io", "format", "plan", "device", "engine", "sim/runtime", "sim/torch"},
}
WITHOUT_TORCH = {"core", "io", "format", "plan", "sim/runtime"}
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|pybind11)/|^Python\.h$")
FMT = re.compile(r"^fmt/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def part_of(path: str) -> str | None:
    """The part that a path inside src belongs to; None for a file directly in src."""
    return next((part for part in ALLOWED if path.startswith(part + "/")), None)


def violations(path: str, text: str) -> list[str]:
    """What the includes of src/`path` break, one sentence each."""
    part = part_of(path)
    if part is None:
        return []
    found = []
    includes = INCLUDE.findall(text)
    for include in includes:
        other = part_of(include)
        if other and other != part and other not in ALLOWED[part]:
            found.append(f"src/{path}: {part} may not include {include}")
        if part in WITHOUT_TORCH and TORCH.match(include):
            found.append(f"src/{path}: {part} builds without PyTorch and may not include {include}")
    if any(map(FMT.match, includes)) and (path.endswith(".h") or any(map(TORCH.match, includes))):
        found.append(f"src/{path}: fmt only in a .cpp without PyTorch headers; torch bundles another version of it")
    return found


def same_names() -> list[str]:
    """Test modules that pytest cannot tell apart: they are imported by their bare name."""
    known: dict[str, str] = {}
    found = []
    for path in files("tests/python/*.py"):
        name = path.rsplit("/", 1)[-1]
        if name.startswith("test_") and name in known:
            found.append(f"{path} and {known[name]} have the same name; rename one")
        known[name] = path
    return found


def check() -> bool:
    found = same_names()
    for path in files("src/*.h", "src/*.cpp"):
        found += violations(path.removeprefix("src/"), (ROOT / path).read_text())
    print("\n".join(found), end="\n" if found else "")
    return not found
