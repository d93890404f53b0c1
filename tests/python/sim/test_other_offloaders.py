"""Other libraries' offloading runs on the simulated device unchanged, and the order checker judges it."""

from __future__ import annotations

import pytest
import torch
from models import build

BLOCKS, WIDTH = 4, 512


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class OnlyAModuleList(torch.nn.Module):
    """Shape T5 of the report log: the root owns nothing but one ModuleList."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def offloaded(offload_type: str, use_stream: bool) -> torch.nn.Module:
    from diffusers.hooks import apply_group_offloading

    torch.manual_seed(0)
    model = OnlyAModuleList()
    blocks = {"num_blocks_per_group": 1} if offload_type == "block_level" else {}
    apply_group_offloading(
        model, torch.device("sim"), torch.device("cpu"), offload_type, use_stream=use_stream, **blocks
    )
    return model


def reference(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return OnlyAModuleList()(x)


@torch.no_grad()
@pytest.mark.parametrize("offload_type", ["block_level", "leaf_level"])
def test_diffusers_without_streams_is_right_and_silent(sim, offload_type: str) -> None:
    x = torch.ones(2, WIDTH)
    model = offloaded(offload_type, use_stream=False)
    for _ in range(3):
        assert torch.equal(model(x.to("sim")).cpu(), reference(x))
    assert sim.races() == []


@torch.no_grad()
def test_diffusers_block_level_with_a_stream_on_a_bare_module_list_races(simulate) -> None:
    # The first of the reports that this project was made for: no root hook, so nobody waits for the copy.
    sim = simulate(checker="record")
    x = torch.ones(2, WIDTH, device="sim")
    torch.sim.synchronize()
    wrong = offloaded("block_level", use_stream=True)(x).cpu()
    races = sim.races()
    assert races
    assert {race.first.op for race in races} == {"aten::copy_"}
    assert all(race.first.write and not race.second.write for race in races)
    assert all(race.first.stream != race.second.stream for race in races)
    assert torch.isnan(wrong).any()


@torch.no_grad()
def test_diffusers_leaf_level_with_a_stream_is_right(simulate) -> None:
    sim = simulate(checker="record")
    x = torch.ones(2, WIDTH)
    model = offloaded("leaf_level", use_stream=True)
    outputs = [model(x.to("sim")).cpu() for _ in range(3)]
    assert sim.races() == [], [race.missing_wait for race in sim.races()]
    assert all(torch.equal(output, reference(x)) for output in outputs)


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "vae"])
def test_accelerate_cpu_offload_is_right_and_silent(sim, name: str) -> None:
    from accelerate import cpu_offload

    expected = build(name).run()
    case = build(name)
    cpu_offload(case.model, execution_device=torch.device("sim:0"))
    for _ in range(2):
        torch.testing.assert_close(case.run().cpu(), expected, rtol=1e-4, atol=1e-5)
    assert sim.stats()["bytes_h2d"] > sum(p.nbytes for p in build(name).model.parameters())
    assert sim.races() == []
