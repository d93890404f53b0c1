"""`trigger="ops"`: groups, order and prefetch come from operators alone."""

from __future__ import annotations

import pytest
import torch
from offloaders import hooks_of
from torch import nn

import noria
import noria.sim
from noria.bench.overhead import SLOWER, block_seconds


@pytest.mark.parametrize("granularity", ["block", "leaf"])
def test_a_model_runs_and_no_module_has_a_hook(device: torch.device, granularity: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(6)))
    weights = sum(parameter.nbytes for parameter in model.parameters())
    x = torch.randn(4, 64)
    with torch.no_grad():
        resident = nn.Sequential(*model).to(device)
        wanted = resident(x.to(device)).cpu()
        model.to("cpu")
        handle = noria.offload(model, device, budget=weights // 2, granularity=granularity, trigger="ops")
        for _ in range(4):
            assert torch.equal(model(x.to(device)).cpu(), wanted)
        assert hooks_of(model) == {}
        state = model.state_dict()
        assert all(tensor.device.type == "cpu" for tensor in state.values())
        assert handle.status().loads > len(handle.status().groups)
        handle.remove()
    assert hooks_of(model) == {}


def test_hooks_are_found_where_there_are_some() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    handle = noria.offload(model, "cpu", budget="1MiB")
    assert {name.split(".")[-1] for name in hooks_of(model)} >= {"_forward_pre_hooks", "_forward_hooks"}
    handle.remove()
    assert hooks_of(model) == {}


def test_fifty_blocks_take_at_most_a_tenth_longer_than_with_hooks(sim: noria.sim.Simulator) -> None:
    assert block_seconds("ops") <= SLOWER * block_seconds("modules")
