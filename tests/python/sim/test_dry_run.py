"""A dry run knows shapes, memory, order and time of models that would not fit here, and small values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import build

GIB = 1 << 30
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def dry(simulate):
    return simulate("h100", dry=True)


def test_tensors_larger_than_this_machine_are_planned(dry) -> None:
    x = torch.empty(20 * GIB, dtype=torch.uint8, device="sim")
    y = x + 1
    assert y.shape == x.shape
    assert torch.sim.memory_allocated() == 40 * GIB
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(50 * GIB, dtype=torch.uint8, device="sim")


def test_time_and_memory_are_those_of_a_real_run(simulate) -> None:
    figures = []
    for dry in (False, True):
        sim = simulate("a100-40g", dry=dry)
        case = build("bert").on("sim")
        torch.sim.synchronize()
        sim.reset_clock()
        output = case.run()
        figures.append((sim.clock(), sim.stats()["kernels"], sim.stats()["peak_allocated"], output.shape))
        del case, output
    assert figures[0][1:] == figures[1][1:]
    assert figures[0][0] == pytest.approx(figures[1][0], rel=1e-3)


def test_small_known_tensors_have_values(dry) -> None:
    mask = torch.ones(1, 8, dtype=torch.int64, device="sim")
    mask[:, 6:] = 0
    assert bool((mask == 0).any())
    assert mask.sum().item() == 6
    assert torch.arange(5, device="sim").tolist() == [0, 1, 2, 3, 4]
    assert torch.tensor([3, 4]).to("sim").cpu().tolist() == [3, 4]
    assert torch.nonzero(mask).shape == (6, 2)


def test_values_of_what_was_not_computed_are_refused(dry) -> None:
    big = torch.ones(1 << 20, device="sim")
    for read in (lambda: big.sum().item(), lambda: bool((big > 0).all()), lambda: big.nonzero()):
        with pytest.raises(RuntimeError, match="dry run"):
            read()


def test_writing_unknown_into_known_makes_it_unknown(dry) -> None:
    small = torch.zeros(4, device="sim")
    assert small.sum().item() == 0.0
    small += torch.ones(1 << 20, device="sim").mean()
    with pytest.raises(RuntimeError, match="dry run"):
        small.sum().item()


def test_unknown_values_reach_the_host_as_poison(dry) -> None:
    mean = torch.ones(1 << 20, device="sim").mean()
    assert torch.isnan(mean.cpu())


@pytest.mark.parametrize("name", ["bert", "t5", "clip", "llama", "flux", "unet", "vae"])
def test_models_with_masks_pass(dry, name: str) -> None:
    expected = build(name).run().shape
    case = build(name)
    case.model.to_empty(device="sim")
    assert case.on("sim").run().shape == expected


@pytest.mark.parametrize(
    "scheduler",
    ["FlowMatchEulerDiscreteScheduler", "DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler"],
)
def test_diffusers_schedulers_pass(dry, scheduler: str) -> None:
    import diffusers

    stepper = getattr(diffusers, scheduler)()
    stepper.set_timesteps(4, device="sim")
    sample = torch.empty(1, 16, 1024, 1024, device="sim")
    for timestep in stepper.timesteps:
        sample = stepper.step(torch.empty_like(sample), timestep, sample, return_dict=False)[0]
    assert sample.shape == (1, 16, 1024, 1024)


def test_a_training_step_passes(dry) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 2048)).to("sim")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.empty(64, 2048, device="sim")).square().mean().backward()
    optimizer.step()
    assert torch.sim.max_memory_allocated() >= 4 * sum(p.nbytes for p in model.parameters())


def test_missing_waits_are_found_in_a_dry_run_too(simulate) -> None:
    sim = simulate("h100", dry=True, checker="record")
    host = torch.empty(1 << 20).pin_memory()
    with torch.sim.stream(torch.sim.Stream()):
        weight = host.to("sim", non_blocking=True)
    weight * 2
    assert [race.second.op for race in sim.races()] == ["aten::mul.out"]


def test_a_flux_of_12_billion_parameters_passes_in_little_memory() -> None:
    import json

    command = [sys.executable, str(ROOT / "bench" / "sim_flux_dry.py"), "--json"]
    row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert row["parameters"] > 11.5e9
    assert row["real_peak_rss_bytes"] < 2 * GIB
    assert 2 * row["parameters"] < row["peak_device_bytes"] < 2.2 * row["parameters"]
    assert 0.01 < row["virtual_seconds"] < 10
