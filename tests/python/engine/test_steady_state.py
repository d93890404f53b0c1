"""What a pass costs once the order is learned: counters of the simulated card, which are exact."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import noria
from noria import _C

BLOCKS = 12
WIDTH = 64
BLOCK_BYTES = WIDTH * WIDTH * 4


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


@pytest.fixture
def card(simulate):
    return simulate(checker="raise")


@pytest.mark.parametrize("slots", [2, 3, 6, 9, 12])
@torch.no_grad()
def test_a_steady_pass_never_blocks_the_host_or_allocates_or_copies_back(card, slots):
    model = Blocks().requires_grad_(False)
    resident = Blocks().requires_grad_(False)
    resident.load_state_dict(model.state_dict())
    resident.to("sim")
    x = torch.randn(4, WIDTH, device="sim")
    expected = resident(x).cpu()
    allocated = card.stats()["allocations"]
    resident(x)
    activations = card.stats()["allocations"] - allocated
    budget = slots * BLOCK_BYTES
    handle = noria.offload(model, "sim", budget=budget, granularity="block")
    for _ in range(4):
        assert torch.equal(model(x).cpu(), expected)
    before, before_sim = handle.status(), card.stats()
    y = model(x)
    after, after_sim = handle.status(), card.stats()
    assert torch.equal(y.cpu(), expected)
    assert after_sim["host_syncs"] == before_sim["host_syncs"]
    assert after_sim["bytes_d2h"] == before_sim["bytes_d2h"]
    assert after_sim["allocations"] - before_sim["allocations"] == activations
    loads = after.loads - before.loads
    assert after_sim["copies_h2d"] - before_sim["copies_h2d"] == loads, "one copy per group"
    assert after.bytes_in - before.bytes_in <= max(BLOCKS * BLOCK_BYTES - budget, 0) + 3 * BLOCK_BYTES
    assert after.peak_device_bytes <= budget
    assert after.net_faults == 0


@torch.no_grad()
def test_the_next_pass_is_prefetched_across_the_end_of_this_one(card):
    model = Blocks().requires_grad_(False)
    x = torch.randn(4, WIDTH, device="sim")
    handle = noria.offload(model, "sim", budget=3 * BLOCK_BYTES, granularity="block")
    for _ in range(3):
        model(x)
    torch.sim.synchronize()
    before = card.stats()["copies_h2d"]
    model.blocks[0](x)  # the first group of the next pass
    assert card.stats()["copies_h2d"] - before <= 1, "it was on the device already; at most the one after it was loaded"
    assert handle.status().stalls == 0


# Names of noria::Ordering in src/engine/omission.h.
ORDERINGS = {"ready": 1, "uses_before_load": 2}


@pytest.fixture
def omit():
    if not hasattr(_C, "omit_orderings"):
        pytest.skip("a release build leaves no wait out")
    yield _C.omit_orderings
    _C.omit_orderings(0)


@pytest.mark.parametrize("ordering", list(ORDERINGS))
@torch.no_grad()
def test_each_wait_left_out_is_a_race(simulate, omit, ordering):
    recorder = simulate(checker="record")
    model = Blocks().requires_grad_(False)
    x = torch.randn(4, WIDTH, device="sim")
    noria.offload(model, "sim", budget=2 * BLOCK_BYTES, granularity="block")
    model(x)
    torch.sim.synchronize()
    assert recorder.races() == []
    omit(ORDERINGS[ordering])
    for _ in range(2):
        model(x)
    omit(0)
    assert recorder.races(), f"leaving out the wait '{ordering}' went unseen"


@torch.no_grad()
def test_a_write_back_left_out_loses_the_write(card, omit):
    model = Blocks().requires_grad_(False)
    x = torch.randn(4, WIDTH, device="sim")
    noria.offload(model, "sim", budget=2 * BLOCK_BYTES, granularity="block")
    model(x)
    kept = model.blocks[0].weight.cpu()
    model.blocks[0].weight.mul_(2)
    model(x)
    assert torch.equal(model.blocks[0].weight.cpu(), kept * 2)
    omit(32)
    model.blocks[0].weight.mul_(2)
    model(x)
    assert torch.equal(model.blocks[0].weight.cpu(), kept * 2), "the write was kept although it was not written back"
