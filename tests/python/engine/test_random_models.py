"""Random models and schedules: whatever is called in whatever order, offloaded and resident give the same bits.

A test's seed makes the model, the settings and everything that happens. `-k seed17` runs one again.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from pairs import Pair
from shapes import WIDTH, Block, Inputs, Interrupted, RaisesOnce, Shape, assert_same_bits, seeded
from torch import nn

import noria

ALWAYS = 10  # every tenth seed runs by default, the others in a long run
SEEDS = [pytest.param(seed, id=f"seed{seed}", marks=[pytest.mark.long] if seed % ALWAYS else []) for seed in range(500)]


class Counting(nn.Module):
    """Running statistics, a step counter, and a layer."""

    def __init__(self, _choose: random.Random) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return torch.tanh(self.linear(self.norm(x))) * (1 + self.steps / 100)


class Wide(nn.Module):
    """Layers of a random size, so that groups differ."""

    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        inner = choose.choice([4, 16, 40, 64])
        self.layers = nn.Sequential(nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class ReadsItsChild(nn.Module):
    """Uses a child's weight without calling the child."""

    def __init__(self, _choose: random.Random) -> None:
        super().__init__()
        self.child = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.sigmoid(self.gate) * (x @ self.child.weight.t()[:, :WIDTH]) + self.child.bias


class Nested(nn.Module):
    """Blocks inside a block, and a list in a list."""

    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        self.inner = nn.ModuleList(
            nn.ModuleList(Block() for _ in range(choose.randint(1, 2))) for _ in range(choose.randint(1, 2))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for blocks in self.inner:
            for block in blocks:
                x = block(x)
        return x


KINDS: list[Callable[[random.Random], nn.Module]] = [lambda _: Block(), Counting, Wide, ReadsItsChild, Nested]


class RandomModel(nn.Module):
    """A list of blocks of random kinds, some of them under two names or with a shared parameter; two entry points."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        choose = random.Random(seed)
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(choose.choice(KINDS)(choose) for _ in range(choose.randint(2, 6)))
        self.tail = nn.ModuleList(choose.choice(KINDS)(choose) for _ in range(choose.randint(0, 3)))
        self.shift = nn.Parameter(torch.randn(WIDTH))
        if choose.random() < 0.3:
            self.alias = choose.choice(self.blocks)
        if choose.random() < 0.3:
            self.head = nn.Linear(WIDTH, WIDTH, bias=False)
            self.head.weight = self.stem.weight

    def forward(self, x: torch.Tensor, order: list[int], between: Callable[[int], None]) -> torch.Tensor:
        x = self.stem(x) + self.shift
        for position, index in enumerate(order):
            between(position)
            x = self.blocks[index](x)
        if hasattr(self, "alias"):
            x = self.alias(x)
        return self.head(x) if hasattr(self, "head") else x

    def finish(self, x: torch.Tensor, order: list[int], between: Callable[[int], None]) -> torch.Tensor:
        for position, index in enumerate(order):
            between(position)
            x = self.tail[index](x)
        return x * self.shift


@dataclass
class Step:
    """One call of a schedule."""

    entry: str
    order: list[int]
    interrupted_in: str | None = None  # a module that raises, if it runs
    resize: tuple[int, float] | None = None  # before which block, to which share
    other_stream: bool = False
    overwrite: str | None = None  # a parameter that is written in place before the call
    delays: int = 0  # copies that take a thousand times longer


def schedule(choose: random.Random, model: RandomModel) -> list[Step]:
    """Mostly the same call again and again, as programs make them; now and then anything else."""
    steps = []
    names = [name for name, _ in model.named_modules() if name.startswith(("blocks.", "tail."))]
    parameters = [name for name, _ in model.named_parameters()]
    for _ in range(choose.randint(4, 9)):
        entry = "finish" if len(model.tail) > 0 and choose.random() < 0.3 else "forward"
        count = len(model.tail if entry == "finish" else model.blocks)
        order = list(range(count))
        surprise = choose.random()
        if surprise < 0.15:
            order = [index for index in order if choose.random() < 0.6]
        elif surprise < 0.25:
            choose.shuffle(order)
        elif surprise < 0.35:
            order = [index for index in order for _ in range(choose.randint(1, 2))]
        steps.append(
            Step(
                entry,
                order,
                interrupted_in=choose.choice(names) if choose.random() < 0.2 else None,
                resize=(choose.randrange(count), choose.random()) if choose.random() < 0.2 else None,
                other_stream=choose.random() < 0.3,
                overwrite=choose.choice(parameters) if choose.random() < 0.15 else None,
                delays=choose.randint(1, 3) if choose.random() < 0.3 else 0,
            )
        )
    return steps


def run(model: RandomModel, step: Step, device: torch.device, seed: int, resize: Callable[[float], None]) -> Any:
    """Makes the step's call; an interrupted one gives None."""
    x = Inputs(device, seed).tensor(3, WIDTH)
    if step.overwrite is not None:
        with torch.no_grad():
            model.get_parameter(step.overwrite).mul_(0.9)

    def between(position: int) -> None:
        if step.resize is not None and position == step.resize[0]:
            resize(step.resize[1])

    interrupted = step.interrupted_in and RaisesOnce(model.get_submodule(step.interrupted_in), Interrupted)
    try:
        with interrupted or contextlib.nullcontext():
            return getattr(model, step.entry)(x, step.order, between)
    except Interrupted:
        return None


@contextlib.contextmanager
def on_another_stream(device: torch.device, wanted: bool) -> Iterator[None]:
    """Work inside goes to a stream of its own, ordered after what was before and before what comes next."""
    if not wanted or device.type != "sim":
        yield
        return
    before = torch.sim.current_stream()
    stream = torch.sim.Stream()
    stream.wait_stream(before)
    with torch.sim.stream(stream):
        yield
    before.wait_stream(stream)


def enable(choose: random.Random, pair: Pair) -> noria.Offload:
    """Offloads with random settings."""
    if choose.random() < 0.3:
        level = choose.choice(["block_level", "leaf_level"])
        return noria.apply_group_offloading(
            pair.offloaded,
            pair.device,
            offload_type=level,
            num_blocks_per_group=choose.randint(1, 4) if level == "block_level" else None,
            use_stream=pair.device.type == "sim" and choose.random() < 0.7,
            low_cpu_mem_usage=choose.random() < 0.3,
            trigger=choose.choice(["modules", "modules", "ops"]),
        )
    options = {
        "granularity": choose.choice(["auto", "block", "leaf"]),
        "trigger": choose.choice(["modules", "modules", "ops"]),
    }
    smallest = pair.smallest_budget(**options)
    budget = smallest + int(choose.choice([0.0, 0.0, 0.2, 0.5, 0.9]) * pair.weights_bytes)
    return noria.offload(pair.offloaded, pair.device, budget=budget, verify=choose.random() < 0.3, **options)


MODES = [torch.inference_mode, torch.no_grad, torch.enable_grad]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_any_model_and_any_schedule(device: str, seed: int, request: pytest.FixtureRequest) -> None:
    sim = request.getfixturevalue("sim") if device == "sim" else None
    choose = random.Random(seed + 1000)
    pair = Pair(Shape("random", lambda _: seeded(RandomModel)(seed), {}), torch.device(device))
    steps = schedule(choose, pair.offloaded)
    handle = enable(choose, pair)
    with pytest.raises(noria.BudgetError) as too_small:
        handle.resize(0)
    smallest = too_small.value.smallest_bytes
    mode = choose.choice(MODES)

    def resize(share: float) -> None:
        handle.resize(smallest + int(share * pair.weights_bytes))

    for number, step in enumerate(steps):
        with mode(), on_another_stream(pair.device, step.other_stream):
            expected = run(pair.resident, step, pair.device, number, lambda _: None)
            if sim is not None and step.delays:
                sim.inject("slow_copy", count=step.delays, factor=1000.0)
            actual = run(pair.offloaded, step, pair.device, number, resize)
        assert_same_bits(actual, expected, f"seed {seed}, call {number}, {step}")
    pair.check_state()
    handle.remove()
    pair.check_state()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_budget_that_a_refusal_names_works(seed: int) -> None:
    """Groups depend on the budget that is asked for; what is named as the smallest must not."""
    choose = random.Random(seed + 2000)
    model = seeded(RandomModel)(seed)
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    for asked in [0, *(choose.randrange(weights) for _ in range(6))]:
        try:
            handle = noria.offload(model, "cpu", budget=asked)
        except noria.BudgetError as error:
            assert error.smallest_bytes > asked
            handle = noria.offload(model, "cpu", budget=error.smallest_bytes)
            smallest = error.smallest_bytes
        else:
            smallest = asked
        handle.remove()
        noria.offload(model, "cpu", budget=smallest + choose.randrange(weights)).remove()
