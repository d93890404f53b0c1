"""How much host memory do making and offloading a model take, at the peak?

Makes a model of square float32 layers of 64 MiB and offloads it to the simulated card, and prints by how much the
resident set grew after imports, at its highest. Target: at most 1.05 x the weights + 200 MiB, less what the simulated
device holds, which is host memory too.

    python bench/host_memory.py [--gib 3] [--device sim|cpu] [--json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import nn

import noria
import noria.offloading
import noria.sim

WIDTH = 4096
MIB, GIB = 1 << 20, 1 << 30


def memory(field: str) -> int:
    """A field of /proc/self/status, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=3.0, help="weights, GiB")
    parser.add_argument("--device", default="sim")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.device == "sim":
        noria.sim.enable("rtx4090")
    torch.zeros(1)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    layers = max(int(arguments.gib * GIB) // (4 * WIDTH * WIDTH), 1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))).requires_grad_(False)
    handle = noria.offload(model, arguments.device, budget="256MiB")
    grown = memory("VmHWM") - before
    status = handle.status()
    weights = status.weights_bytes
    row = {
        "weights_bytes": weights,
        "grown_bytes": grown,
        "device_bytes": status.device_bytes,
        "host_bytes": status.host_pinned_bytes + status.host_pageable_bytes,
        "allowed_bytes": int(1.05 * weights) + 200 * MIB,
    }
    if arguments.json:
        print(json.dumps(row))
        return 0
    for name, value in row.items():
        print(f"{name:>16} {value / MIB:10.1f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
