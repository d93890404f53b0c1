"""Offloading in a dry run: nothing is copied; order, bytes and virtual time are those of a real run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import noria

WIDTH = 640  # a block of 1.6 MiB, more than a dry run keeps in real memory


def chain(device: str) -> nn.Sequential:
    with torch.device(device):
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6))).requires_grad_(False).eval()


def steady_pass(sim, model: nn.Module, budget: int) -> tuple[int, float, int]:
    """Bytes in, virtual seconds and stalls of the fifth pass, and the peak of device memory."""
    handle = noria.offload(model, "sim", budget=budget, granularity="leaf")
    x = torch.zeros(2, WIDTH, device="sim")
    for _ in range(4):
        model(x)
    torch.sim.synchronize()
    before, began = handle.status(), sim.clock()
    model(x)
    torch.sim.synchronize()
    after = handle.status()
    return after.bytes_in - before.bytes_in, sim.clock() - began, after.stalls - before.stalls


@pytest.mark.parametrize("slots", [1, 2, 3, 6])
@torch.no_grad()
def test_a_dry_run_takes_the_same_bytes_and_nanoseconds(simulate, slots):
    budget = slots * (4 * WIDTH * (WIDTH + 1) + 1024)
    real = steady_pass(simulate(), chain("cpu"), budget)
    dry = simulate(dry=True)
    assert steady_pass(dry, chain("cpu"), budget) == real
    simulate()


@torch.no_grad()
def test_a_model_that_never_had_weights_runs_dry(simulate):
    budget = 2 * (4 * WIDTH * (WIDTH + 1) + 1024)
    expected = steady_pass(simulate(dry=True), chain("cpu"), budget)
    assert steady_pass(simulate(dry=True), chain("meta"), budget) == expected
    simulate()


def test_a_model_on_meta_is_refused_outside_a_dry_run(simulate):
    simulate()
    with pytest.raises(ValueError, match=r"'0\.weight' is on the meta device.*noria\.load"):
        noria.offload(chain("meta"), "sim", budget="1GiB")
