"""Real model families run on the simulated device: close to the CPU, and the same bits in every run."""

from __future__ import annotations

import gc

import pytest
import torch
from models import CASES, build


@pytest.mark.parametrize("name", CASES)
def test_forward_is_close_to_the_cpu_and_repeats_itself(sim, name: str) -> None:
    expected = build(name).run()
    case = build(name).on("sim")
    first, second = case.run(), case.run()
    torch.testing.assert_close(first.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(first, second)
    assert sim.races() == []


@pytest.mark.parametrize("name", ["flux", "bert"])
def test_half_precision_runs(sim, name: str) -> None:
    case = build(name)
    case.model.to(torch.bfloat16)
    case.inputs = {k: v.bfloat16() if v.is_floating_point() else v for k, v in case.inputs.items()}
    expected = case.run()
    torch.testing.assert_close(case.on("sim").run().cpu(), expected, rtol=5e-2, atol=5e-2)


def losses(device: str) -> list[float]:
    """Three steps of AdamW on the tiny BERT."""
    case = build("bert").on(device)
    case.model.train()
    torch.manual_seed(4)
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-2)
    history = []
    for _ in range(3):
        loss = case.model(**case.inputs)[0].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())
    return history


def test_training_with_adamw_is_close_to_the_cpu_and_repeats_itself(sim) -> None:
    first, second = losses("sim"), losses("sim")
    assert first == second
    assert first == pytest.approx(losses("cpu"), rel=1e-3)
    assert first[2] < first[0]
    assert sim.races() == []


def test_torchao_int8_weights_run(sim) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    quantize_(model, Int8WeightOnlyConfig())
    x = torch.randn(4, 64)
    with torch.no_grad():
        expected = model(x)
        model.to("sim")
        first, second = model(x.to("sim")), model(x.to("sim"))
    assert first.device.type == "sim"
    torch.testing.assert_close(first.cpu(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(first, second)
    del model, first, second
    gc.collect()
