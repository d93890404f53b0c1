"""Weights of unusual kinds: taken and right, or refused by name with nothing changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from shapes import assert_same_bits
from torch import nn

import noria

WIDTH = 4


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What PyTorch says of complex modules, quantized and nested tensors is not about us."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def with_weight(weight: torch.Tensor) -> nn.Module:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    model.weight = nn.Parameter(weight, requires_grad=False)
    return model


VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "conjugate": lambda: torch.randn(WIDTH, WIDTH, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(WIDTH, WIDTH, dtype=torch.complex64).conj().imag,
    "transposed": lambda: torch.randn(WIDTH, WIDTH).t(),
    "expanded": lambda: torch.randn(WIDTH, 1).expand(WIDTH, WIDTH),
    "a part of a larger one": lambda: torch.randn(3 * WIDTH, WIDTH)[WIDTH : 2 * WIDTH],
    "every other column": lambda: torch.randn(WIDTH, 2 * WIDTH)[:, ::2],
}


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_of_any_kind_can_be_a_weight(device: torch.device, kind: str) -> None:
    torch.manual_seed(3)
    weight = VIEWS[kind]()
    resident = with_weight(weight.clone().to(device))
    model = with_weight(weight)
    handle = noria.offload(model, device, budget=512)
    x = torch.randn(2, WIDTH, dtype=weight.dtype).to(device)
    for _ in range(3):
        # Another layout may take another path through the matrix product: the last bits are not the point here.
        torch.testing.assert_close(model(x), resident(x))
    assert (model.weight.is_conj(), model.weight.is_neg()) == (weight.is_conj(), weight.is_neg())
    handle.remove()
    assert_same_bits(model.weight.detach().resolve_conj().resolve_neg(), weight.clone().resolve_conj().resolve_neg())


def scripted() -> nn.Module:
    torch.manual_seed(0)
    return torch.jit.script(nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH)))


def traced() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))
    return torch.jit.trace(model, torch.zeros(1, WIDTH))


def around_a_compiled_one() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), scripted(), nn.Linear(WIDTH, WIDTH))


@pytest.mark.parametrize("build", [scripted, traced, around_a_compiled_one])
def test_torchscript_runs_through_the_operator_net(device: torch.device, build: Callable[[], nn.Module]) -> None:
    model, resident = build(), build()
    resident.load_state_dict(model.state_dict())
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    resident.to(device)
    handle = noria.offload(model, device, budget=512, granularity="leaf")
    for seed in range(4):
        x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed)).to(device)
        assert_same_bits(model(x), resident(x))
    status = handle.status()
    assert status.loads > 2
    assert status.net_faults > 0
    assert status.peak_device_bytes <= 512
    handle.remove()
    for name, tensor in model.state_dict().items():
        assert_same_bits(tensor.cpu(), expected[name], name)


def test_frozen_torchscript_has_nothing_to_offload(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"torch\.jit\.freeze"):
        noria.offload(torch.jit.freeze(scripted().eval()), device, budget=1024)


REFUSED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sparse": (lambda: torch.eye(WIDTH).to_sparse(), "no plain storage"),
    "sparse rows": (lambda: torch.eye(WIDTH).to_sparse_csr(), "no plain storage"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.eye(WIDTH), 0.1, 0, torch.qint8), "no plain storage"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "no plain storage"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_paged_is_refused_by_name_and_nothing_changes(device: torch.device, kind: str) -> None:
    build, text = REFUSED[kind]
    model = nn.Linear(WIDTH, WIDTH)
    model.register_buffer("odd", build())
    with pytest.raises(ValueError, match=f"'odd'.*{text}"):
        noria.offload(model, device, budget=1024)
    assert model.weight.device.type == "cpu"
    assert not model._forward_pre_hooks
    model(torch.zeros(1, WIDTH))


def test_a_weight_without_a_shape_is_refused_by_name(device: torch.device) -> None:
    model = nn.Sequential(nn.LazyLinear(WIDTH))
    with pytest.raises(ValueError, match=r"'0\.weight'.*call the model once"):
        noria.offload(model, device, budget=1024)
