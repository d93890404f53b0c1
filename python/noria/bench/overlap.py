"""How close does a steady pass come to the bound of any schedule, on the simulated cards' own clock?

A chain of linear blocks runs under budgets from three slots to everything, with computation a quarter of, equal to and
four times the copying. The link, the latencies and the overheads are the card's; its arithmetic rate is set so that the
ratio comes out. The runs are dry: order, bytes and virtual time without the arithmetic. Virtual time is exact: the same
run gives the same nanosecond on every machine.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

PROFILES = ("rtx4090", "arc-b580", "h100")
RATIOS = (0.25, 1.0, 4.0)
BATCH = 4
# Both in the widths of square float32 layers. Equal: 20 blocks of 16 MiB. UNet: a quarter of the pixels with twice the
# channels at each level, so that every block computes the same while their weights differ by 16.
SHAPES = {
    "equal": (2048,) * 20,
    "unet": (512,) * 2 + (1024,) * 3 + (2048,) * 4 + (1024,) * 3 + (512,) * 2,
}
_BYTES_PER_FLOAT = 4


@dataclass(frozen=True)
class Row:
    """One budget. Bytes and virtual seconds.

    Attributes:
        machine: the simulated card.
        shape: "equal" or "unet".
        compute_to_copy: seconds of computation over seconds of copying all weights.
        budget: how the budget was given.
        budget_bytes: weights allowed on the device.
        peak_device_bytes: the most that was taken.
        weights_bytes: all weights.
        bytes_in: copied to the device in a steady pass.
        bytes_allowed: weights - budget + three of the largest groups.
        seconds: of a steady pass.
        bound_seconds: no schedule at this budget is faster, not even one that splits blocks. For equal blocks, the
            longer of computing and copying what was copied.
        host_syncs: in a steady pass.
    """

    machine: str
    shape: str
    compute_to_copy: float
    budget: str
    budget_bytes: int
    peak_device_bytes: int
    weights_bytes: int
    bytes_in: int
    bytes_allowed: int
    seconds: float
    bound_seconds: float
    host_syncs: int

    @property
    def over_bound(self) -> float:
        """Seconds over the bound; the target is 1.03 for equal blocks."""
        return self.seconds / self.bound_seconds


class Chain(nn.Module):
    """Square layers, one after the other, each on an input of its own."""

    def __init__(self, widths: Sequence[int]) -> None:
        """Layers of these widths, without bias."""
        super().__init__()
        self.widths = tuple(widths)
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for width in widths)

    def forward(self, inputs: dict[int, torch.Tensor]) -> torch.Tensor:
        """Each block on the input of its width, (batch, width)."""
        out = torch.empty(0)
        for width, block in zip(self.widths, self.blocks, strict=True):
            out = block(inputs[width])
        return out


def least_seconds(block_seconds: Sequence[float], block_bytes: Sequence[int], budget: int, link: float) -> float:
    """Seconds of a pass, repeated for ever, below which no schedule at this budget comes.

    While a block is in use its bytes are taken, so of the blocks after it at most the rest of the budget can be there
    when it ends; what else a later block and those before it need arrives after that, and before the later one begins.
    The pass is the least period under which all of these constraints hold together: found by bisection, a period being
    possible when the graph of constraints has no cycle of positive length.
    """
    count = len(block_bytes)
    edges = []
    for begin in range(count):
        needed = block_bytes[begin]
        for length in range(1, count):
            needed += block_bytes[(begin + length) % count]
            late = max(needed - budget, 0) / link
            if length == 1 or late > 0:
                edges.append((begin, (begin + length) % count, block_seconds[begin] + late, begin + length >= count))

    def possible(period: float) -> bool:
        starts = [0.0] * count
        for _ in range(count + 1):
            changed = False
            for begin, end, seconds, wraps in edges:
                earliest = starts[begin] + seconds - (period if wraps else 0.0)
                if earliest > starts[end] + 1e-12:
                    starts[end] = earliest
                    changed = True
            if not changed:
                return True
        return False

    low = max(sum(block_seconds), (sum(block_bytes) - budget) / link)
    high = sum(block_seconds) + sum(block_bytes) / link
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if possible(middle) else (middle, high)
    return high


def card(profile: str, shape: str, ratio: float) -> dict[str, Any]:
    """Overrides for `profile` under which computing `shape` takes `ratio` times as long as copying it."""
    import noria.sim

    figures = noria.sim.profiles()[profile]
    widths = SHAPES[shape]
    copy_seconds = sum(width * width * _BYTES_PER_FLOAT for width in widths) / figures["h2d_bytes_per_second"]
    block_seconds = ratio * copy_seconds / len(widths) - figures["kernel_floor_seconds"]
    largest = max(widths)
    flops = 2 * BATCH * largest * largest / block_seconds
    return {"flops": {**figures["flops"], "float32": flops, "tfloat32": flops}}


def inputs_of(shape: str) -> dict[int, torch.Tensor]:
    """One input per width; narrow layers get so many rows that every layer computes the same."""
    largest = max(SHAPES[shape])
    return {width: torch.zeros(BATCH * (largest // width) ** 2, width, device="sim") for width in SHAPES[shape]}


def budgets_of(widths: Sequence[int]) -> dict[str, int]:
    """Three slots of the largest block, and shares of the weights."""
    weights = sum(width * width for width in widths) * _BYTES_PER_FLOAT
    slots = 3 * max(widths) ** 2 * _BYTES_PER_FLOAT
    shares = {f"{share} %": weights * share // 100 for share in (25, 50, 75, 100)}
    return {"3 slots": slots, **{name: size for name, size in shares.items() if size >= slots or name == "25 %"}}


def rows(profiles: Sequence[str] = PROFILES, shapes: Sequence[str] = tuple(SHAPES)) -> Iterator[Row]:
    """Every combination of card, shape, ratio and budget."""
    for profile in profiles:
        for shape in shapes:
            for ratio in RATIOS:
                yield from _rows_of(profile, shape, ratio)


def _seconds_per_pass(sim: Any, model: Chain, inputs: dict[int, torch.Tensor], passes: int) -> float:
    torch.sim.synchronize()  # type: ignore[attr-defined]
    begin = sim.clock()
    for _ in range(passes):
        model(inputs)
    torch.sim.synchronize()  # type: ignore[attr-defined]
    return float(sim.clock() - begin) / passes


@torch.no_grad()
def _rows_of(profile: str, shape: str, ratio: float) -> Iterator[Row]:
    import noria
    import noria.sim
    from noria.errors import BudgetError

    sim = noria.sim.enable(profile, dry=True, overrides=card(profile, shape, ratio))
    link = noria.sim.profiles()[profile]["h2d_bytes_per_second"]
    widths = SHAPES[shape]
    block_bytes = [width * width * _BYTES_PER_FLOAT for width in widths]
    weights = sum(block_bytes)
    inputs = inputs_of(shape)

    def chain() -> Chain:
        with torch.device("meta"):
            return Chain(widths).requires_grad_(False)

    model = chain().to_empty(device="sim")
    model(inputs)
    resident = _seconds_per_pass(sim, model, inputs, 1)
    block_seconds = [resident / len(widths)] * len(widths)
    del model
    for name, budget in budgets_of(widths).items():
        model = chain()
        try:
            handle = noria.offload(model, "sim", budget=budget, granularity="leaf")
        except BudgetError:
            continue
        for _ in range(2):  # learns the order and measures; then makes its plan, and settles
            for _ in range(4):
                model(inputs)
            torch.sim.synchronize()  # type: ignore[attr-defined]
        before = handle.status()
        passes = 6
        elapsed = _seconds_per_pass(sim, model, inputs, passes)
        after = handle.status()
        bytes_in = (after.bytes_in - before.bytes_in) // passes
        bound = least_seconds(block_seconds, block_bytes, budget, link)
        if shape == "equal":  # DESIGN section 4: the bytes may exceed what the budget forces, up to `bytes_allowed`
            bound = max(bound, bytes_in / link)
        yield Row(
            machine=profile,
            shape=shape,
            compute_to_copy=ratio,
            budget=name,
            budget_bytes=budget,
            peak_device_bytes=after.peak_device_bytes,
            weights_bytes=weights,
            bytes_in=bytes_in,
            bytes_allowed=max(weights - budget, 0) + 3 * max(block_bytes),
            seconds=elapsed,
            bound_seconds=bound,
            host_syncs=after.host_syncs - before.host_syncs,
        )
        del handle, model
    del inputs
    gc.collect()
