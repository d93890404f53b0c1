"""How fast do weights come from a disk, against the read engine alone and against peers?

A synthetic checkpoint (64 layers) is written once. Each contender then runs the same chain of layers, one pass after
the other, in a process of its own: noria on the cpu at three budgets, accelerate's `disk_offload`, Diffusers'
`offload_to_disk_path`, and a plain memory map; and the read engine alone, without a model. The contenders take turns,
cold (the files dropped from the page cache, and checked to be) and cached. At last noria runs beside a computation that
takes as long as reading.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

LAYERS = 64
GIB = 1 << 30
CONTENDERS = ("engine alone", "noria 10 %", "noria 50 %", "noria 100 %", "accelerate", "diffusers", "mmap", "resident")
# Both with so many inputs that computing takes as long as reading.
_COMPUTING = ", computing as long"

Maker = Callable[[Path, int, Path, int], tuple[Callable[[], Any], list[Path]]]


@dataclass(frozen=True)
class Row:
    """One contender in one state of the page cache. The median over the rounds.

    Attributes:
        contender: who ran.
        state: "cold" or "cached".
        seconds: of a pass through all layers.
        gb_per_second: of weights, 10^9 bytes.
        peak_rss_bytes: growth of the resident set after imports, at its highest.
        cpu_seconds_per_gib: of all threads.
    """

    contender: str
    state: str
    seconds: float
    gb_per_second: float
    peak_rss_bytes: int
    cpu_seconds_per_gib: float


def chain(width: int) -> nn.Sequential:
    """The model: square layers without bias."""
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS))).requires_grad_(False)


def width_for(gib: float) -> int:
    """The width at which the chain has `gib` GiB of float32 weights, a multiple of 64."""
    return max(int((gib * GIB / 4 / LAYERS) ** 0.5) // 64 * 64, 64)


def write_checkpoint(folder: Path, width: int) -> None:
    """One safetensors file per eight layers, with an index."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    weight_map = {}
    for begin in range(0, LAYERS, 8):
        name = f"model-{begin // 8 + 1:05d}-of-{LAYERS // 8:05d}.safetensors"
        tensors = {f"{i}.weight": torch.randn(width, width) / width**0.5 for i in range(begin, begin + 8)}
        save_file(tensors, folder / name)
        weight_map.update(dict.fromkeys(tensors, name))
    index = {"metadata": {"total_size": LAYERS * width * width * 4}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    os.sync()


def files_below(*folders: Path) -> list[Path]:
    """Every file that holds weights."""
    return [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 4096]


def drop(paths: list[Path]) -> None:
    """Asks the system to forget the files' pages."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cached_share(paths: list[Path]) -> float:
    """The share of the files' pages that are in the page cache."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    pages = resident = 0
    for path in paths:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE,
                                                 flags=mmap.MAP_PRIVATE) as view:  # fmt: skip
            count = -(-len(view) // mmap.PAGESIZE)
            flags = ctypes.create_string_buffer(count)
            anchor = ctypes.c_char.from_buffer(view)
            if mincore(ctypes.addressof(anchor), len(view), flags) == 0:
                pages += count
                resident += sum(byte & 1 for byte in flags.raw)
            del anchor
    return resident / max(pages, 1)


def warm(paths: list[Path]) -> None:
    """Reads the files into the page cache."""
    for path in paths:
        with open(path, "rb") as file:
            while file.read(8 << 20):
                pass


def memory(field: str) -> int:
    """A field of /proc/self/status, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


# --- Contenders: each gives a function that makes one pass, and the folders that it reads -----------------------------


def engine_alone(folder: Path, _width: int, _scratch: Path, _batch: int) -> tuple[Callable[[], Any], list[Path]]:
    from noria import _C

    shards = _C.ShardSet.open(str(folder))
    return shards.read_through, [folder]


def noria_at(share: float) -> Maker:
    def make(folder: Path, width: int, _scratch: Path, batch: int) -> tuple[Callable[[], Any], list[Path]]:
        import noria
        from noria.loading import empty_weights

        with empty_weights():
            model = chain(width)
        weights = LAYERS * width * width * 4
        smallest = width * width * 4 + 512
        noria.load(model, folder, "cpu", budget=max(int(share * weights), 2 * smallest) + LAYERS * 512)
        x = torch.ones(batch, width)
        return lambda: model(x), [folder]

    return make


def accelerate(folder: Path, width: int, scratch: Path, batch: int) -> tuple[Callable[[], Any], list[Path]]:
    from accelerate import disk_offload

    model = loaded(folder, width)
    disk_offload(model, str(scratch), execution_device=torch.device("cpu"))
    x = torch.ones(batch, width)
    return lambda: model(x), [scratch]


def diffusers(folder: Path, width: int, scratch: Path, batch: int) -> tuple[Callable[[], Any], list[Path]]:
    from diffusers.hooks.group_offloading import apply_group_offloading

    model = loaded(folder, width)
    apply_group_offloading(model, torch.device("cpu"), offload_type="leaf_level", offload_to_disk_path=str(scratch))
    x = torch.ones(batch, width)
    return lambda: model(x), [scratch]


def mapped(folder: Path, width: int, _scratch: Path, batch: int) -> tuple[Callable[[], Any], list[Path]]:
    model = loaded(folder, width)
    x = torch.ones(batch, width)
    return lambda: model(x), [folder]


def resident(folder: Path, width: int, _scratch: Path, batch: int) -> tuple[Callable[[], Any], list[Path]]:
    model = loaded(folder, width)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    x = torch.ones(batch, width)
    return lambda: model(x), [folder]


@torch.no_grad()
def batch_for(target_seconds: float, folder: Path, width: int) -> int:
    """How many inputs make a pass of the resident model take that long."""
    model = loaded(folder, width)
    batch, seconds = 8, 0.0
    while seconds < target_seconds / 4:
        batch *= 2
        x = torch.ones(batch, width)
        model(x)
        began = time.perf_counter()
        model(x)
        seconds = time.perf_counter() - began
    return max(int(batch * target_seconds / seconds), 1)


def loaded(folder: Path, width: int) -> nn.Sequential:
    """The chain over the mapped files."""
    from safetensors.torch import load_file

    with torch.device("meta"):
        model = chain(width)
    state: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        state.update(load_file(path))
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False)


MAKERS: dict[str, Maker] = {
    "engine alone": engine_alone,
    "noria 10 %": noria_at(0.1),
    "noria 50 %": noria_at(0.5),
    "noria 100 %": noria_at(1.0),
    "accelerate": accelerate,
    "diffusers": diffusers,
    "mmap": mapped,
    "resident": resident,
}


@torch.no_grad()
def work(contender: str, folder: Path, width: int, state: str, passes: int, batch: int) -> dict[str, Any]:
    """One contender's passes, in this process: seconds of each, peak memory, CPU time, how cold the cache was."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        before = memory("VmRSS")
        run, reads = MAKERS[contender](folder, width, Path(scratch), batch)
        run()  # the first pass learns
        run()
        Path("/proc/self/clear_refs").write_text("5")
        seconds, shares = [], []
        began_cpu = time.process_time()
        for _ in range(passes):
            if state == "cold":
                drop(files_below(*reads))
                shares.append(cached_share(files_below(*reads)))
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
        cpu = (time.process_time() - began_cpu) / passes
        return {
            "seconds": seconds,
            "cached_before": shares,
            "peak_rss_bytes": memory("VmHWM") - before,
            "cpu_seconds": cpu,
        }


def measure(gib: float, rounds: int, folder: str | None = None) -> list[Row]:
    """Writes the checkpoint and lets the contenders take turns.

    Args:
        gib: bytes of weights, GiB; three times that must be free below `folder`.
        rounds: how often each has its turn.
        folder: where to write; None: the system's temporary folder.
    """
    width = width_for(gib)
    weights = LAYERS * width * width * 4
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(dir=folder) as base:
        checkpoint = Path(base) / "checkpoint"
        checkpoint.mkdir()
        write_checkpoint(checkpoint, width)
        for _ in range(rounds):
            for state in ("cold", "cached"):
                for contender in CONTENDERS:
                    if state == "cold" and contender in ("mmap", "resident"):
                        continue  # pages that are mapped cannot be dropped
                    if state == "cached":
                        warm(files_below(checkpoint))
                    if (result := _in_a_process(contender, checkpoint, width, state)) is not None:
                        found.setdefault((contender, state), []).append(result)
            reading = min(found["engine alone", "cold"][-1]["seconds"])
            calibrated = _in_a_process("resident", checkpoint, width, "cached", "--seconds", str(reading))
            if calibrated is not None:
                found.setdefault(("resident" + _COMPUTING, "cached"), []).append(calibrated)
                batch = ("--batch", str(calibrated["batch"]))
                if (result := _in_a_process("noria 10 %", checkpoint, width, "cold", *batch)) is not None:
                    found.setdefault(("noria 10 %" + _COMPUTING, "cold"), []).append(result)
    rows = []
    for (contender, state), results in found.items():
        seconds = sorted(second for result in results for second in result["seconds"])
        median = seconds[len(seconds) // 2]
        rows.append(
            Row(
                contender=contender,
                state=state,
                seconds=median,
                gb_per_second=weights / median / 1e9,
                peak_rss_bytes=max(result["peak_rss_bytes"] for result in results),
                cpu_seconds_per_gib=min(result["cpu_seconds"] for result in results) / (weights / GIB),
            )
        )
    return rows


def _in_a_process(contender: str, checkpoint: Path, width: int, state: str, *options: str) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "noria.bench.disk", contender, str(checkpoint), str(width), state, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{contender}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return dict(json.loads(done.stdout.splitlines()[-1]))


def as_data(rows: list[Row]) -> dict[str, Any]:
    """For `--json`."""
    return {"rows": [asdict(row) for row in rows]}


def main() -> int:
    """One contender in this process, for `measure`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("width", type=int)
    parser.add_argument("state", choices=("cold", "cached"))
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, help="take so many inputs that a pass of the resident model lasts that"
    )
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    batch = arguments.batch
    if arguments.seconds is not None:
        batch = batch_for(arguments.seconds, arguments.folder, arguments.width)
    result = work(arguments.contender, arguments.folder, arguments.width, arguments.state, arguments.passes, batch)
    print(json.dumps({**result, "batch": batch}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
