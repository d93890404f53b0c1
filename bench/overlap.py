"""How close does a steady pass come to the lower bound, max(compute, bytes in / link)?

Twenty equal blocks on a simulated card, dry: virtual time is exact and repeats to the nanosecond. For each
compute-to-copy ratio and budget: seconds of a steady pass, the bound, bytes in per pass, stalls, the engine's host
synchronisations, and bytes of frozen weights copied back. Prints one JSON object per line.

    .venv/bin/python bench/overlap.py [--profile rtx4090] [--block 64MiB]
"""

from __future__ import annotations

import argparse
import gc
import json
from typing import Any

import torch
from torch import nn

import noria
import noria.sim
from noria import _C

BLOCKS = 20
WIDTH = 4096


class Block(nn.Module):
    """A matrix product whose result is dropped: all that counts is its weight and its time."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, WIDTH), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.nn.functional.linear(x, self.weight)
        return x


class Blocks(nn.Module):
    """Equal blocks, called in turn."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(rows) for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def virtual_seconds(sim: noria.sim.Simulator, work: Any) -> float:
    torch.sim.synchronize()  # type: ignore[attr-defined]
    begin = sim.clock()
    work()
    torch.sim.synchronize()  # type: ignore[attr-defined]
    return sim.clock() - begin


def resident_seconds(sim: noria.sim.Simulator, rows: int, x: torch.Tensor) -> float:
    model = Blocks(rows).to("sim")
    model(x)
    return virtual_seconds(sim, lambda: model(x))


@torch.no_grad()
def measure(profile: str, block_bytes: int, ratio: float, budget_slots: float) -> dict[str, Any]:
    gc.collect()
    sim = noria.sim.enable(profile=profile, dry=True)
    figures = noria.sim.profiles()[profile]
    rows = block_bytes // (4 * WIDTH)
    copy_seconds = block_bytes / figures["h2d_bytes_per_second"]
    batch = max(1, round(ratio * copy_seconds * figures["flops"]["float32"] / (2 * rows * WIDTH)))
    x = torch.empty(batch, WIDTH, device="sim")
    compute = resident_seconds(sim, rows, x)
    model = Blocks(rows)
    budget = int(budget_slots * block_bytes)
    handle = noria.offload(model, "sim", budget=budget, granularity="block")
    for _ in range(4):
        model(x)
    before, stats_before = handle.status(), sim.stats()
    seconds = virtual_seconds(sim, lambda: model(x))
    after, stats_after = handle.status(), sim.stats()
    bytes_in = after.bytes_in - before.bytes_in
    bound = max(compute, bytes_in / figures["h2d_bytes_per_second"])
    return {
        "profile": profile,
        "compute_to_copy": ratio,
        "budget_slots": budget_slots,
        "seconds": seconds,
        "bound_seconds": bound,
        "over_bound": round(seconds / bound, 4),
        "bytes_in": bytes_in,
        "most_bytes_in": max(BLOCKS * block_bytes - budget, 0) + 3 * block_bytes,
        "stalls": after.stalls - before.stalls,
        "engine_host_syncs": after.host_syncs - before.host_syncs,
        "bytes_d2h": stats_after["bytes_d2h"] - stats_before["bytes_d2h"],
        "peak_device_bytes": after.peak_device_bytes,
        "budget_bytes": budget,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="append", help="simulated cards; default: three")
    parser.add_argument("--block", default="64MiB", help="bytes of one block")
    arguments = parser.parse_args()
    block = _C.parse_byte_amount(arguments.block, 0)
    for profile in arguments.profile or ["rtx4090", "rtx3060-12g", "h100"]:
        for ratio in (0.25, 1.0, 4.0):
            for slots in (3, 5, 10, 15, 20):
                print(json.dumps(measure(profile, block, ratio, slots)), flush=True)


if __name__ == "__main__":
    main()
