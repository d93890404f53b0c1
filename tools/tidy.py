"""clang-tidy over every .cpp of ours, with the compile commands of the dev build.

Nearly all of the time goes into matching the checks against what the headers declare, PyTorch's above all, once per
translation unit. So files that are compiled alike are checked together, as one unit that includes them; those whose
names clash go into another one. A group with something to say is checked again file by file, and that is printed.

A clean result is remembered outside the checkout, under the hash of everything it depends on: the file, the headers of
ours that it reaches, the flags, .clang-tidy, and the versions of the tools and libraries around it. A finding is never
remembered.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sources import CLANG, CLANG_TIDY, ROOT, files

DATABASE = ROOT / "build" / "dev" / "compile_commands.json"
WORK = ROOT / "build" / "lint"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "noria" / "tidy"
KEEP_DAYS = 30
# More files save little: a group must fit into memory beside another one, and one finding makes it run twice.
GROUP_FILES = 10
# Folders whose .cpp files HeaderFilterRegex names: inside a group they are reported like headers.
GROUPED = ("src", "tests", "bench")
INCLUDE = re.compile(rb'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
PREFIX = ROOT / "src" / "torch_prefix.h"


def flags_for_clang(command: str) -> tuple[list[str], bool]:
    """A compile command without compiler, input and output, as clang takes it; and whether it uses the prefix header.

    GCC's precompiled header is of no use to clang: the commands that include it name the header it was made from.
    """
    words = shlex.split(command)[1:]
    flags: list[str] = []
    prefixed = False
    index = 0
    while index < len(words):
        word = words[index]
        if word in ("-o", "-c"):
            index += 2
            continue
        if word == "-include" and words[index + 1].endswith("cmake_pch.hxx"):
            prefixed = True
            index += 2
            continue
        if word not in ("-fpch-preprocess", "-Winvalid-pch"):
            flags.append(word)
        index += 1
    return flags, prefixed


@functools.cache
def reached(path: Path) -> frozenset[Path]:
    """The headers of ours that a file includes, and those that they include."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        for name in INCLUDE.findall(current.read_bytes()):
            for folder in (current.parent, ROOT / "include", ROOT / "src", ROOT / "tests"):
                header = (folder / os.fsdecode(name)).resolve()
                if header.is_file() and header.is_relative_to(ROOT):
                    if header not in found:
                        found.add(header)
                        waiting.append(header)
                    break
    return frozenset(found)


@functools.cache
def surroundings() -> bytes:
    """What decides a result besides our own files: the tools' and the libraries' versions, and the rules."""
    version = subprocess.run([CLANG_TIDY, "--version"], check=True, capture_output=True).stdout
    packages = [line for line in (ROOT / "tools" / "debian-packages.txt").read_text().split() if line != "#"]
    libraries = subprocess.run(["dpkg-query", "-W", "libstdc++-12-dev", *packages], check=False, capture_output=True)
    own = Path(__file__).read_bytes()
    rules = b"".join((ROOT / name).read_bytes() for name in (".clang-tidy", "tests/.clang-tidy", "constraints.txt"))
    return b"\0".join((version, libraries.stdout, own, rules))


def key(path: Path, flags: list[str], prefixed: bool) -> str:
    """The name under which a clean result is remembered; the same in every checkout of the same content."""
    digest = hashlib.sha256(surroundings())
    digest.update(" ".join(flags).replace(str(ROOT), "@").encode())
    headers = set(reached(path)) | ({PREFIX} if prefixed else set())
    for part in (path, *sorted(headers)):
        digest.update(f"\0{part.relative_to(ROOT)}\0".encode())
        digest.update(part.read_bytes())
    return digest.hexdigest()


def precompile(flags: list[str], number: int) -> Path | None:
    """Clang's own precompiled form of the prefix header, for the files that share these flags."""
    output = WORK / f"prefix-{number}.pch"
    command = [CLANG, *flags, "-w", "-x", "c++-header", str(PREFIX), "-o", str(output)]
    done = subprocess.run(command, cwd=WORK, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr)
        return None
    return output


@dataclass(frozen=True)
class Unit:
    """Files that clang-tidy sees as one translation unit, and the command that compiles them, without its input."""

    files: tuple[Path, ...]
    command: tuple[str, ...]

    def source(self) -> Path:
        """What is compiled: the file itself, or one that includes all of them, where the same rules hold."""
        if len(self.files) == 1:
            return self.files[0]
        name = hashlib.sha256("\0".join(map(str, self.files)).encode()).hexdigest()[:16]
        folder = WORK / self.files[0].relative_to(ROOT).parts[0]
        folder.mkdir(exist_ok=True)
        rules = ROOT / folder.name / ".clang-tidy"
        if rules.exists():
            shutil.copyfile(rules, folder / ".clang-tidy")
        source = folder / f"group-{name}.cpp"
        source.write_text("".join(f'#include "{path}"  // NOLINT\n' for path in self.files))
        return source


def clashing(unit: Unit) -> set[Path]:
    """Files of a group that do not compile after the others, such as for a name that those have too."""
    command = [*unit.command, "-w", "-ferror-limit=0", "-fsyntax-only", "-fno-color-diagnostics", str(unit.source())]
    done = subprocess.run(command, cwd=WORK, check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return set()
    named = {Path(line.split(":")[0]) for line in done.stderr.splitlines() if ": error: " in line}
    # An error in a header stands for a file that nobody can name.
    return named & set(unit.files) or set(unit.files[1:])


def grouped(unit: Unit) -> list[Unit]:
    """The files of `unit`, all compiled alike, as groups without clashes."""
    groups, waiting = [], list(unit.files)
    while waiting:
        group = Unit(tuple(waiting[:GROUP_FILES]), unit.command)
        while len(group.files) > 1 and (out := clashing(group)):
            kept = [path for path in group.files if path not in out] or [group.files[0]]
            group = Unit(tuple(kept), unit.command)
        groups.append(group)
        waiting = [path for path in waiting if path not in group.files]
    return groups


def check_unit(unit: Unit) -> dict[Path, str]:
    """What clang-tidy has to say about each file of a unit."""
    if len(unit.files) > 1 and not tidy(unit.source(), WORK):
        return dict.fromkeys(unit.files, "")
    return {path: tidy(path, WORK) for path in unit.files}


def tidy(path: Path, folder: Path) -> str:
    """What clang-tidy has to say about one translation unit; empty when nothing."""
    command = [CLANG_TIDY, "--quiet", "-p", str(folder), str(path)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    noise = re.compile(r"^\d+ (warnings?|errors?)( and \d+ errors?)? generated\.$")
    said = [line for line in (done.stdout + done.stderr).splitlines() if not noise.match(line)]
    return "\n".join(said) if done.returncode != 0 or done.stdout.strip() else ""


def entries() -> dict[Path, tuple[list[str], bool]]:
    """The translation units of ours in the dev build, with their flags."""
    found = {}
    for entry in json.loads(DATABASE.read_text()):
        path = Path(entry["file"]).resolve()
        if path.suffix == ".cpp" and not path.is_relative_to(ROOT / "build"):
            found[path] = flags_for_clang(entry["command"])
    return found


def forget_old() -> None:
    limit = time.time() - KEEP_DAYS * 86400
    for result in CACHE.iterdir():
        if result.stat().st_mtime < limit:
            result.unlink(missing_ok=True)


def check() -> bool:
    units = entries()
    strays = [path for path in files("*.cpp") if ROOT / path not in units]
    for path in strays:
        print(f"{path}: in no target of the dev build, so nothing checks it; add it to a CMakeLists.txt")
    CACHE.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    keys = {path: key(path, *unit) for path, unit in units.items()}
    todo = []
    for path in units:
        remembered = CACHE / keys[path]
        if remembered.exists():
            remembered.touch()
        else:
            todo.append(path)
    # With its folder: clang finds the system's headers, and so knows them as such, from where it lies itself.
    clang = shutil.which(CLANG) or CLANG
    jobs = int(os.environ.get("JOBS", os.cpu_count() or 2))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        # A precompiled header pays from the second file on.
        shared = Counter(tuple(units[path][0]) for path in todo if units[path][1])
        worth = [flags for flags, users in shared.items() if users > 1]
        headers = dict(zip(worth, pool.map(precompile, map(list, worth), range(len(worth))), strict=True))
        alike: dict[tuple[str, tuple[str, ...]], list[Path]] = {}
        for path in todo:
            flags, prefixed = units[path]
            header = headers.get(tuple(flags))
            prefix = ["-include-pch", str(header)] if header else ["-include", str(PREFIX)]
            command = (clang, *flags, *(prefix if prefixed else []))
            top = path.relative_to(ROOT).parts[0]
            alike.setdefault((top if top in GROUPED else str(path), command), []).append(path)
        whole = [Unit(tuple(paths), command) for (_, command), paths in alike.items()]
        groups = [group for found in pool.map(grouped, whole) for group in found]
        commands = [
            {"directory": str(WORK), "file": str(path), "command": shlex.join([*group.command, "-c", str(path)])}
            for group in groups
            for path in {group.source(), *group.files}
        ]
        (WORK / "compile_commands.json").write_text(json.dumps(commands, indent=1))
        findings = 0
        # The largest first, so that no processor is left with one at the end.
        groups.sort(key=lambda group: -len(group.files))
        results = (item for found in pool.map(check_unit, groups) for item in found.items())
        for path, said in results:
            if said:
                findings += 1
                print(said, flush=True)
            else:
                (CACHE / keys[path]).touch()
    print(
        f"clang-tidy: {len(units)} files, {len(todo)} not seen clean before (in {len(groups)} groups), "
        f"{findings} with findings",
        flush=True,
    )
    forget_old()
    return findings == 0 and not strays


if __name__ == "__main__":
    sys.exit(0 if check() else 1)
