"""What a pass costs once the order is learned: counters of the simulated card, which are exact."""

from __future__ import annotations

import copy

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


def twice(build: type[nn.Module]) -> tuple[nn.Module, nn.Module]:
    """A model on the cpu, and the same on the card."""
    model = build().requires_grad_(False)
    return model, copy.deepcopy(model).to("sim")


@pytest.fixture
def card(simulate):
    return simulate(checker="raise")


@pytest.mark.parametrize("slots", [2, 3, 6, 9, 12])
@torch.no_grad()
def test_a_steady_pass_never_blocks_the_host_or_allocates_or_copies_back(card, slots):
    model, resident = twice(Blocks)
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


class Unequal(nn.Module):
    """Two large layers between small ones."""

    WIDTHS = (16, 16, 256, 16, 256, 16, 16)

    def __init__(self) -> None:
        super().__init__()
        pairs = zip(self.WIDTHS, self.WIDTHS[1:], strict=False)
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.mark.parametrize("verify", [False, True])
@torch.no_grad()
def test_a_large_group_comes_in_parts_beside_its_large_neighbour(card, verify):
    model, resident = twice(Unequal)
    large = 16 * 256 * 4
    handle = noria.offload(model, "sim", budget=large + large // 2, granularity="leaf", verify=verify)
    streamed = [group["bytes"] for group in handle.status().groups if not group["resident"]]
    assert streamed.count(large) >= 2, "or there would be no neighbours"
    x = torch.randn(4, 16, device="sim")
    for _ in range(8):
        assert torch.equal(model(x).cpu(), resident(x).cpu())
    before, before_sim = handle.status(), card.stats()
    assert torch.equal(model(x).cpu(), resident(x).cpu())
    after, after_sim = handle.status(), card.stats()
    assert after_sim["copies_h2d"] - before_sim["copies_h2d"] > after.loads - before.loads
    streamed = [group["bytes"] for group in after.groups if not group["resident"]]
    assert after.bytes_in - before.bytes_in <= sum(streamed), "no byte came twice"
    assert after.peak_device_bytes <= large + large // 2


@torch.no_grad()
def test_an_order_that_changes_while_a_group_comes_in_parts(card):
    model, resident = twice(Unequal)
    large = 16 * 256 * 4
    noria.offload(model, "sim", budget=large + large // 2, granularity="leaf")
    x = torch.randn(4, 16, device="sim")
    for _ in range(4):
        model(x)
    for first, second in ((1, 4), (4, 1), (1, 3), (2, 1), (3, 2), (1, 1), (4, 4), (2, 3)):
        for _ in range(2):  # from the start of a pass, where the learned order expects others
            model.layers[0](x)
            for index in (first, second):
                y = torch.randn(2, model.layers[index].in_features, device="sim")
                assert torch.equal(model.layers[index](y), resident.layers[index](y))
    assert torch.equal(model(x), resident(x))


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


# Values of noria::Ordering in src/engine/omission.h.
READY, USES_BEFORE_LOAD, WRITE_BACK_BEFORE_LOAD, USES_BEFORE_WRITE_BACK, ARENA_BEFORE_LOAD, SETTLE, WRITE_BACK = (
    1 << bit for bit in range(7)
)


@pytest.fixture
def omit():
    if not hasattr(_C, "omit_orderings"):
        pytest.skip("a release build leaves no wait out")
    yield _C.omit_orderings
    _C.omit_orderings(0)


def read_twice(model: nn.Module, x: torch.Tensor, handle: noria.Offload) -> None:
    model(x)
    model(x)


def write_and_read(model: nn.Module, x: torch.Tensor, handle: noria.Offload) -> None:
    for block in model.blocks:
        block.weight.mul_(0.5)
    model(x)


def write_and_flush(model: nn.Module, x: torch.Tensor, handle: noria.Offload) -> None:
    for block in model.blocks:
        block.weight.mul_(0.5)
    handle.flush()


@pytest.mark.parametrize(
    ("ordering", "slots", "program"),
    [
        (READY, 2, read_twice),
        (USES_BEFORE_LOAD, 2, read_twice),
        (WRITE_BACK_BEFORE_LOAD, 2, write_and_read),
        (USES_BEFORE_WRITE_BACK, 2, write_and_read),
        (SETTLE, BLOCKS, write_and_flush),
    ],
)
@torch.no_grad()
def test_each_wait_left_out_is_a_race(simulate, omit, ordering, slots, program):
    recorder = simulate(checker="record")
    model = Blocks().requires_grad_(False)
    x = torch.randn(4, WIDTH, device="sim")
    handle = noria.offload(model, "sim", budget=slots * BLOCK_BYTES, granularity="block")
    for _ in range(3):
        program(model, x, handle)
    torch.sim.synchronize()
    assert recorder.races() == []
    omit(ordering)
    program(model, x, handle)
    omit(0)
    assert recorder.races(), "leaving out the wait went unseen"


@pytest.mark.parametrize("left_out", [False, True])
@torch.no_grad()
def test_the_arena_waits_for_who_had_its_memory_before(simulate, omit, left_out):
    recorder = simulate(checker="record")
    model = Blocks().requires_grad_(False)
    x = torch.randn(4, WIDTH, device="sim")
    before = torch.zeros(2, BLOCK_BYTES // 4, device="sim")
    before.add_(1)
    del before  # the device may still be adding
    omit(ARENA_BEFORE_LOAD if left_out else 0)
    noria.offload(model, "sim", budget=2 * BLOCK_BYTES, granularity="block")
    model(x)
    assert bool(recorder.races()) == left_out


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
    omit(WRITE_BACK)
    model.blocks[0].weight.mul_(2)
    model(x)
    assert torch.equal(model.blocks[0].weight.cpu(), kept * 2), "the write was kept although it was not written back"
