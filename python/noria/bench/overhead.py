"""What do hooks and the operator net cost the host, and what does it cost to do without hooks?

Hooks: a chain of layers so small that nothing else counts, resident on the simulated device and offloaded to it, in one
run; the difference per group use. Net: operators on tensors that are not managed, with and without a model of 1,000
managed weights alive. Best of several rounds. Without hooks: a steady pass of 50 blocks of which a quarter fits, in
virtual time, with `trigger="ops"`; what the same pass takes with hooks is its target's base.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

LAYERS = 100
WIDTH = 8
ROUNDS = 7
BLOCKS = 50
SLOWER = 1.1  # without hooks, at most this many times as long as with them


@dataclass(frozen=True)
class Row:
    """One figure, in microseconds.

    Attributes:
        what: what was measured.
        microseconds: per group use, per operator or per block; of host time unless it says virtual.
        target: at most this.
    """

    what: str
    microseconds: float
    target: float


def best_seconds(work: Callable[[], object]) -> float:
    """The quickest of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def chain() -> nn.Sequential:
    """Small layers in a row."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).requires_grad_(False)


class Block(nn.Module):
    """A gated feed-forward block: several operators on weights of one group."""

    def __init__(self) -> None:
        """1024 wide, without bias."""
        super().__init__()
        self.norm = nn.LayerNorm(1024)
        self.up, self.gate, self.down = (nn.Linear(1024, 1024, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 1024) to the same."""
        hidden = self.norm(x)
        return x + self.down(self.up(hidden) * torch.sigmoid(self.gate(hidden)))  # type: ignore[no-any-return]


@torch.no_grad()
def block_seconds(trigger: str) -> float:
    """Virtual seconds of one block in a steady pass of 50, of which a quarter fits. Enables the simulator."""
    import noria
    import noria.sim

    gc.collect()
    sim = noria.sim.enable("rtx4090", dry=True)
    with torch.device("meta"):
        model = nn.Sequential(*(Block() for _ in range(BLOCKS))).requires_grad_(False)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    x = torch.zeros(4096, 1024, device="sim")
    noria.offload(model, "sim", budget=weights // 4, granularity="block", trigger=trigger)

    def passes(count: int) -> float:
        begin = sim.clock()
        for _ in range(count):
            model(x)
        torch.sim.synchronize()  # type: ignore[attr-defined]
        return float(sim.clock() - begin) / count

    passes(4)  # learns the order and measures
    passes(4)  # makes its plan, and settles
    return passes(4) / BLOCKS


@torch.no_grad()
def host_rows() -> list[Row]:
    """Hooks and net, on the host's clock. Enables the simulator, without its checker."""
    import noria
    import noria.sim

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    noria.sim.enable("rtx4090", checker="off")
    out = []
    x = torch.zeros(1, WIDTH, device="sim")
    resident = chain().to("sim")
    plain = best_seconds(lambda: [resident(x) for _ in range(5)]) / (5 * LAYERS)
    group = 1024  # a layer, padded
    for what, budget in (("resident groups", 2 * LAYERS * group), ("streamed groups", 4 * group)):
        model = chain()
        handle = noria.offload(model, "sim", budget=budget, granularity="leaf")
        for _ in range(6):
            model(x)
            torch.sim.synchronize()  # type: ignore[attr-defined]
        offloaded = best_seconds(lambda model=model: [model(x) for _ in range(5)]) / (5 * LAYERS)  # type: ignore[misc]
        out.append(Row(f"hooks, per use of {what}", 1e6 * (offloaded - plain), 15.0))
        handle.remove()
    del handle, model
    calls = 20_000
    a = torch.zeros(4)

    def operators() -> None:
        for _ in range(calls):
            a.neg_()

    without = best_seconds(operators) / calls
    many = nn.ParameterList(nn.Parameter(torch.zeros(16), requires_grad=False) for _ in range(1000))
    handle = noria.offload(many, "sim", budget="1MiB")
    beside = best_seconds(operators) / calls
    out.append(Row("operator net, per operator beside 1,000 managed weights", 1e6 * (beside - without), 0.3))
    handle.remove()
    gone = best_seconds(operators) / calls
    out.append(Row("operator net, per operator with nothing offloaded any more", 1e6 * (gone - without), 0.0))
    torch.set_num_threads(threads)
    return out


def rows() -> list[Row]:
    """All figures. Enables the simulator."""
    out = host_rows()
    hooks, ops = (1e6 * block_seconds(trigger) for trigger in ("modules", "ops"))
    return [*out, Row(f"one of {BLOCKS} streamed blocks without hooks, virtual time", ops, SLOWER * hooks)]
