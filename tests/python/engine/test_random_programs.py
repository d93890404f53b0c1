"""Random programs over managed weights do what they do on plain ones: reads, writes, views, calls, gradients.

Hypothesis makes the programs, and shrinks one that fails. NORIA_LONG=1 runs 2,000 of them per device.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shapes import assert_same_bits
from torch import nn

import noria

WIDTH = 8
LAYERS = 5
PROGRAMS = 2000 if os.environ.get("NORIA_LONG") else 200


class Net(nn.Module):
    """Layers, a tied one, a norm with running statistics, and a bare parameter of the root."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.tied = nn.Linear(WIDTH, WIDTH, bias=False)
        self.tied.weight = self.layers[0].weight
        self.norm = nn.BatchNorm1d(WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.norm(self.tied(x)) * self.scale


class Machine:
    """One model and what a program has kept of it."""

    def __init__(self, model: Net, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.views: list[torch.Tensor] = []
        self.handle: noria.Offload | None = None

    def weight(self, index: int) -> torch.Tensor:
        weights = list(self.model.parameters())
        return weights[index % len(weights)]

    def layer(self, index: int) -> nn.Module:
        return self.model.layers[index % LAYERS]

    def input(self, seed: int) -> torch.Tensor:
        return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed)).to(self.device)


def keep_view(machine: Machine, index: int) -> torch.Tensor:
    weight = machine.weight(index).detach()
    view = weight.reshape(-1)[index % 3 :: 2] if index % 2 else weight.t()
    machine.views.append(view)
    return view.sum()


def read_view(machine: Machine, index: int) -> Any:
    return machine.views[index % len(machine.views)] * 2 if machine.views else None


def write_view(machine: Machine, index: int) -> None:
    if machine.views:
        machine.views[index % len(machine.views)].mul_(0.75)


def backward(machine: Machine, index: int) -> Any:
    machine.model.zero_grad()
    with torch.enable_grad():
        machine.model(machine.input(index)).square().mean().backward()
    return [parameter.grad.clone() for parameter in machine.model.parameters()]


def step(machine: Machine, index: int) -> None:
    backward(machine, index)
    torch.optim.SGD(machine.model.parameters(), lr=0.1, foreach=bool(index % 2)).step()


def handle_only(action: Callable[[noria.Offload, Machine, int], None]) -> Callable[[Machine, int], None]:
    def run(machine: Machine, index: int) -> None:
        if machine.handle is not None:
            action(machine.handle, machine, index)

    return run


def use_resident(handle: noria.Offload, machine: Machine, index: int) -> None:
    layer = machine.layer(index)
    try:
        with handle.resident(layer):
            layer.weight.data_ptr()
    except noria.BudgetError:
        pass  # it does not fit beside what is around it: allowed, and changes nothing


def resize(handle: noria.Offload, machine: Machine, index: int) -> None:
    handle.resize(machine.smallest + 512 * (index % 8))  # type: ignore[attr-defined]


ACTIONS: dict[str, Callable[[Machine, int], Any]] = {
    "read": lambda machine, index: machine.weight(index).norm(),
    "read a row": lambda machine, index: machine.weight(index)[index % WIDTH] + 1,
    "multiply": lambda machine, index: machine.input(index) @ machine.layer(index).weight.t(),
    "mul_": lambda machine, index: machine.weight(index).mul_(0.5),
    "fill a row": lambda machine, index: machine.weight(index)[index % WIDTH].fill_(index / 7),
    "copy_": lambda machine, index: machine.weight(index).copy_(machine.weight(index).flip(0)),
    "data.add_": lambda machine, index: machine.weight(index).data.add_(0.25),
    "keep a view": keep_view,
    "read a view": read_view,
    "write a view": write_view,
    "call a layer": lambda machine, index: machine.layer(index)(machine.input(index)),
    "call": lambda machine, index: machine.model(machine.input(index)),
    "train or eval": lambda machine, index: machine.model.train(bool(index % 2)) and None,
    "backward": backward,
    "step": step,
    "copy": lambda machine, index: copy.deepcopy(machine.layer(index)).weight,
    "state": lambda machine, index: list(machine.model.state_dict().values()),
    "flush": handle_only(lambda handle, machine, index: handle.flush()),
    "resident": handle_only(use_resident),
    "resize": handle_only(resize),
}

PROGRAM = st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 20)), min_size=1, max_size=25)


def plain(value: Any) -> Any:
    """What an action answers, on the cpu."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, list):
        return [plain(one) for one in value]
    return None


def smallest_budget(device: torch.device) -> int:
    try:
        noria.offload(Net(), device, budget=0, granularity="leaf")
    except noria.BudgetError as error:
        return error.smallest_bytes
    raise AssertionError("a budget of nothing was accepted")


def run(machine: Machine, program: list[tuple[str, int]]) -> list[Any]:
    with torch.no_grad():
        answers = [plain(ACTIONS[name](machine, index)) for name, index in program]
        answers.append(plain(list(machine.model.state_dict().values())))
    return answers


@settings(
    max_examples=PROGRAMS,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(program=PROGRAM, slack=st.integers(0, 6))
def test_a_program_does_the_same(device: torch.device, program: list[tuple[str, int]], slack: int) -> None:
    torch.manual_seed(0)
    model = Net()
    offloaded = Machine(copy.deepcopy(model), device)
    resident = Machine(model.to(device), device)
    smallest = smallest_budget(device)
    offloaded.smallest = smallest  # type: ignore[attr-defined]
    offloaded.handle = noria.offload(offloaded.model, device, budget=smallest + 512 * slack, granularity="leaf")
    expected = run(resident, program)
    actual = run(offloaded, program)
    for (name, index), one, other in zip([*program, ("the end", 0)], actual, expected, strict=True):
        if other is not None:
            assert_same_bits(one, other, f"{name} {index}")
    assert offloaded.handle.status().peak_device_bytes <= smallest + 512 * 8
    offloaded.handle.remove()
    for name, tensor in resident.model.state_dict().items():
        assert_same_bits(offloaded.model.state_dict()[name], tensor.cpu(), name)
