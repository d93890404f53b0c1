"""The standing test: an offloaded model gives the same bits as the same model resident on the same device."""

from __future__ import annotations

import pytest
import torch
from pairs import Pair, smallest_budget
from shapes import SHAPES

import noria

LEVELS = ["leaf", "groups of 1", "groups of 2", "groups of 3", "groups of 4"]


@pytest.fixture(params=SHAPES.values(), ids=str)
def pair(request: pytest.FixtureRequest, device: torch.device) -> Pair:
    return Pair(request.param, device)


def diffusers_arguments(level: str) -> dict:
    """What apply_group_offloading calls the level."""
    if level == "leaf":
        return {"offload_type": "leaf_level"}
    return {"offload_type": "block_level", "num_blocks_per_group": int(level.split()[-1])}


@pytest.mark.parametrize("low_memory", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "low memory"])
@pytest.mark.parametrize("level", LEVELS)
def test_group_offloading_gives_the_same_bits(pair: Pair, level: str, low_memory: bool) -> None:
    for part in pair.parts.values():
        noria.apply_group_offloading(part, pair.device, low_cpu_mem_usage=low_memory, **diffusers_arguments(level))
    pair.check()
    pair.check_state()


@pytest.mark.parametrize("low_memory", [False, True], ids=["", "low memory"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=str)
def test_group_offloading_on_a_stream_gives_the_same_bits(shape, sim, level: str, low_memory: bool) -> None:
    pair = Pair(shape, torch.device("sim"))
    for part in pair.parts.values():
        noria.apply_group_offloading(
            part, pair.device, use_stream=True, low_cpu_mem_usage=low_memory, **diffusers_arguments(level)
        )
    pair.check()
    pair.check_state()


BUDGETS = [
    ("auto", 0.0), ("auto", 0.25), ("auto", 0.5), ("auto", 0.75), ("auto", 1.0),
    ("block", 0.0), ("block", 0.5), ("leaf", 0.0), ("leaf", 0.5),
]  # fmt: skip


@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
@pytest.mark.parametrize(("granularity", "share"), BUDGETS)
def test_every_budget_gives_the_same_bits(pair: Pair, granularity: str, share: float, verify: bool) -> None:
    """From the smallest that works to everything; `share` says where between the two."""
    smallest = pair.smallest_budget(granularity=granularity)
    everything = max(2 * pair.weights_bytes, smallest)
    budget = smallest + int(share * (everything - smallest))
    handle = noria.offload(pair.parts, pair.device, budget=budget, granularity=granularity, verify=verify)
    pair.check()
    pair.check_state()
    assert handle.status().peak_device_bytes <= budget


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_without_hooks_the_bits_are_the_same(pair: Pair, share: float) -> None:
    smallest = pair.smallest_budget(granularity="block", trigger="ops")
    budget = smallest + int(share * pair.weights_bytes)
    noria.offload(pair.parts, pair.device, budget=budget, granularity="block", trigger="ops")
    pair.check()
    pair.check_state()


def test_removing_gives_back_the_same_parameters_with_their_values(pair: Pair) -> None:
    before = {name: list(part.parameters()) for name, part in pair.parts.items()}
    handle = noria.offload(pair.parts, pair.device, budget="1MiB", granularity="leaf")
    pair.check(passes=1)
    handle.remove()
    for name, part in pair.parts.items():
        assert all(tensor.device.type == "cpu" for tensor in [*part.parameters(), *part.buffers()])
        for old, new in zip(before[name], part.parameters(), strict=True):
            assert old is new
    pair.check_state()


def test_budgets_below_the_smallest_are_refused_and_leave_the_model_as_it_was(pair: Pair) -> None:
    smallest = smallest_budget(pair.parts, pair.device, granularity="leaf")
    with pytest.raises(noria.BudgetError) as raised:
        noria.offload(pair.parts, pair.device, budget=smallest - 1, granularity="leaf")
    assert raised.value.smallest_bytes == smallest
    for part in pair.parts.values():
        assert all(tensor.device.type == "cpu" for tensor in [*part.parameters(), *part.buffers()])
        part.to(pair.device)
    pair.check(passes=1)
