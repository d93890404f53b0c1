"""Training with weights that come and go: the same bits as training on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import pytest
import torch
from shapes import assert_same_bits
from torch import nn

import noria

WIDTH = 32
STEPS = 20


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(5)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizer] = {
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=1e-2),
    "AdamW, one by one": lambda weights: torch.optim.AdamW(weights, lr=1e-2, foreach=False),
    "SGD with momentum": lambda weights: torch.optim.SGD(weights, lr=1e-2, momentum=0.9),
    "SGD with momentum, one by one": lambda weights: torch.optim.SGD(weights, lr=1e-2, momentum=0.9, foreach=False),
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(4, WIDTH, generator=generator).to(device)
    optimizer.zero_grad()
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def assert_same_model(actual: nn.Module, expected: nn.Module) -> None:
    state = actual.state_dict()
    for name, tensor in expected.state_dict().items():
        assert_same_bits(state[name].cpu(), tensor.cpu(), name)
    for (name, one), other in zip(actual.named_parameters(), expected.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            assert one.grad.device == one.device
            assert_same_bits(one.grad.cpu(), other.grad.cpu(), f"gradient of {name}")


@pytest.fixture
def models(device: torch.device) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    resident = Net()
    offloaded = copy.deepcopy(resident)
    return resident.to(device), offloaded


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("how", OPTIMIZERS)
def test_training_with_everything_offloaded_gives_the_same_bits(models, device, how: str, share: float) -> None:
    resident, offloaded = models
    weights = sum(parameter.nbytes for parameter in resident.parameters())
    handle = noria.offload(offloaded, device, budget=int(share * 1.2 * weights), granularity="leaf")
    optimizers = [OPTIMIZERS[how](model.parameters()) for model in models]
    for number in range(STEPS):
        expected = step(resident, optimizers[0], device, number)
        try:
            actual = step(offloaded, optimizers[1], device, number)
        except RuntimeError as error:
            assert "one by one" not in how and share < 1.0, "only an operator over all weights may be refused"
            assert "EvictedWeightError" in str(error)
            assert "foreach=False" in str(error)
            assert "bytes)" in str(error)
            return
        assert_same_bits(actual, expected, f"loss of step {number}")
    assert_same_model(offloaded, resident)
    handle.remove()
    assert_same_model(offloaded.to(device), resident)


def test_a_step_over_more_than_the_budget_changes_nothing_or_everything(models, device) -> None:
    resident, offloaded = models
    weights = sum(parameter.nbytes for parameter in resident.parameters())
    noria.offload(offloaded, device, budget=weights // 3, granularity="leaf")
    before = {name: tensor.clone() for name, tensor in offloaded.state_dict().items()}
    with torch.no_grad():
        for model in models:
            parameters = list(model.parameters())
            try:
                torch._foreach_add_(parameters, 1.0)
            except RuntimeError as error:
                assert model is offloaded
                assert "_foreach_add_" in str(error)
                for name, tensor in offloaded.state_dict().items():
                    assert_same_bits(tensor, before[name], name)
                return
    assert_same_model(offloaded, resident)


def test_what_the_message_asks_for_is_enough(models, device) -> None:
    resident, offloaded = models
    weights = sum(parameter.nbytes for parameter in offloaded.parameters())
    handle = noria.offload(offloaded, device, budget=weights // 3, granularity="leaf")
    matrices = [block[0].weight for block in offloaded.blocks]
    expected = torch.cat([block[0].weight for block in resident.blocks])
    with torch.no_grad():
        with pytest.raises(RuntimeError, match=r"EvictedWeightError: blocks.*aten::cat needs it together with") as error:
            torch.cat(matrices)
        asked = int(str(error.value).split("Give a budget of at least")[1].split("(")[1].split()[0])
        assert asked == sum(matrix.nbytes + 512 for matrix in matrices), "five layers, biases included"
        handle.resize(asked - 512)
        with pytest.raises(RuntimeError, match="EvictedWeightError"):
            torch.cat(matrices)
        handle.resize(asked)
        assert_same_bits(torch.cat(matrices), expected)
