"""PyTorch's transforms and training tools over weights that come and go: the same bits as on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from shapes import Inputs, assert_same_bits
from torch import nn
from torch.nn import functional as F

import noria

WIDTH = 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.fixture(params=["modules", "ops"])
def models(request: pytest.FixtureRequest, device: torch.device) -> tuple[Net, Net]:
    """The same model resident and under a third of its weights."""
    torch.manual_seed(0)
    resident = Net()
    offloaded = copy.deepcopy(resident)
    weights = sum(parameter.nbytes for parameter in resident.parameters())
    noria.offload(offloaded, device, budget=weights // 3, granularity="leaf", trigger=request.param)
    return resident.to(device), offloaded


def vmap_over_inputs(model: Net, inputs: Inputs) -> Any:
    return torch.vmap(model)(inputs.tensor(4, 3, WIDTH))


def vmap_with_a_weight_read_directly(model: Net, inputs: Inputs) -> Any:
    layer = model.blocks[3][0]
    return torch.vmap(lambda x: F.linear(x, layer.weight, layer.bias))(inputs.tensor(4, WIDTH))


def jvp_of_the_model(model: Net, inputs: Inputs) -> Any:
    return torch.func.jvp(model, (inputs.tensor(3, WIDTH),), (inputs.tensor(3, WIDTH),))


def dual_numbers(model: Net, inputs: Inputs) -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(inputs.tensor(3, WIDTH), inputs.tensor(3, WIDTH))
        return list(torch.autograd.forward_ad.unpack_dual(model(dual)))


def jacobian_rows(model: Net, inputs: Inputs) -> Any:
    return torch.func.jacrev(model)(inputs.tensor(WIDTH))


def gradients_per_sample(model: Net, inputs: Inputs) -> Any:
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, inputs.tensor(4, WIDTH))


def hessian_vector_product(model: Net, inputs: Inputs) -> Any:
    x = inputs.tensor(3, WIDTH).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad((gradient * inputs.tensor(3, WIDTH)).sum(), [x, *model.parameters()])


TRANSFORMS = [
    vmap_over_inputs,
    vmap_with_a_weight_read_directly,
    jvp_of_the_model,
    dual_numbers,
    jacobian_rows,
    gradients_per_sample,
    hessian_vector_product,
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda f: f.__name__)
def test_a_transform_gives_the_same_bits(models, device, transform: Callable[[Net, Inputs], Any]) -> None:
    resident, offloaded = models
    for seed in range(3):
        expected = transform(resident, Inputs(device, seed))
        assert_same_bits(transform(offloaded, Inputs(device, seed)), expected, f"call {seed}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_with_a_gradient_scaler_and_accumulation(models, device, dtype: torch.dtype) -> None:
    """Two half batches per step; a step whose gradients overflow is skipped by both."""
    scalers = [torch.amp.GradScaler(device.type, init_scale=2.0**10, growth_interval=2) for _ in models]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False) for model in models]
    for number in range(8):
        losses = []
        for model, scaler, optimizer in zip(models, scalers, optimizers, strict=True):
            inputs = Inputs(device, number)
            optimizer.zero_grad()
            for _ in range(2):
                x = inputs.tensor(3, WIDTH)
                if number == 4:
                    x = x * 1e20
                with torch.autocast(device.type, dtype=dtype):
                    loss = model(x).square().mean()
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            scaler.step(optimizer)
            scaler.update()
            losses.append(torch.nan_to_num(loss.detach()))
        assert_same_bits(losses[1], losses[0], f"loss of step {number}")
        assert scalers[0].get_scale() == scalers[1].get_scale()
    assert scalers[0].get_scale() != 2.0**10
    for name, tensor in models[0].state_dict().items():
        assert_same_bits(models[1].state_dict()[name], tensor, name)
