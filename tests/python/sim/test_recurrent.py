"""LSTM, GRU and plain RNN on the simulated device: values, gradients, what they hold and launch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}
SHAPES: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False},
    {"num_layers": 2, "dropout": 0.5},
]


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [tensor for item in value for tensor in flat(item)]


def results_and_gradients(module: nn.Module, *inputs: Any) -> list[torch.Tensor]:
    """Everything that the module returns, and the gradients of its inputs and weights, on the CPU."""
    leaves = [tensor.requires_grad_() for tensor in flat(inputs)] + list(module.parameters())
    results = flat(module(*inputs))
    # Each result with weights of its own, so that no two paths can cancel.
    loss = sum((result * torch.linspace(-1, 2, result.numel(), device=result.device).view_as(result)).sum()
               for result in results)  # fmt: skip
    return [tensor.detach().cpu() for tensor in (*results, *torch.autograd.grad(loss, leaves))]


def assert_same_on_sim(module: nn.Module, *inputs: Any) -> None:
    def copied(value: Any, device: str) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().clone().to(device)
        return tuple(copied(item, device) for item in value)

    expected = results_and_gradients(module, *copied(inputs, "cpu"))
    module.to("sim")
    actual = results_and_gradients(module, *copied(inputs, "sim"))
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    again = results_and_gradients(module, *copied(inputs, "sim"))
    assert all(map(torch.equal, again, actual))


@pytest.mark.parametrize("options", SHAPES, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_backward_are_close_to_the_cpus(sim, kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(3)
    # Two devices drop other elements: compared where nothing is dropped.
    module = KINDS[kind](5, 7, **options).train("dropout" not in options)
    assert_same_on_sim(module, torch.randn(4, 3, 5))
    assert sim.races() == []


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_projection_is_close_to_the_cpus(sim) -> None:
    torch.manual_seed(3)
    assert_same_on_sim(nn.LSTM(5, 7, proj_size=2), torch.randn(4, 3, 5))


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_cells_with_a_state_of_their_own_are_close_to_the_cpus(sim, kind: str, bias: bool) -> None:
    torch.manual_seed(3)
    state = torch.randn(3, 7)
    hidden = (state, torch.randn(3, 7)) if kind == "lstm" else state
    assert_same_on_sim(CELLS[kind](5, 7, bias=bias), torch.randn(3, 5), hidden)


@pytest.mark.parametrize("used", ["hidden", "cell"])
def test_the_gradient_of_one_result_alone_is_the_cpus(sim, used: str) -> None:
    def gradients(device: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        cell = nn.LSTMCell(5, 7).to(device)
        x, cx = torch.randn(3, 5).to(device), torch.randn(3, 7).to(device).requires_grad_()
        hidden, new_cell = cell(x, (torch.zeros(3, 7, device=device), cx))
        (hidden if used == "hidden" else new_cell).square().sum().backward()
        return [cx.grad.cpu(), *(weight.grad.cpu() for weight in cell.parameters())]

    for got, want in zip(gradients("sim"), gradients("cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_several_lengths_are_close_to_the_cpus(sim, kind: str) -> None:
    torch.manual_seed(3)
    module, x = KINDS[kind](5, 7, bidirectional=True), torch.randn(4, 3, 5)

    def run(device: str) -> torch.Tensor:
        packed = rnn.pack_padded_sequence(x.to(device), [4, 1, 3], enforce_sorted=False)
        return rnn.pad_packed_sequence(module.to(device)(packed)[0])[0].detach().cpu()

    torch.testing.assert_close(run("sim"), run("cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_keeps_its_type(sim, kind: str) -> None:
    torch.manual_seed(3)
    module, x = KINDS[kind](5, 7), torch.randn(4, 3, 5)
    expected = module(x)[0]
    half = module.to("sim", torch.bfloat16)
    out = half(x.to("sim", torch.bfloat16))[0]
    out.sum().backward()
    assert out.dtype == half.weight_hh_l0.grad.dtype == torch.bfloat16
    torch.testing.assert_close(out.float().cpu(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(("kind", "gates"), [("lstm", 4), ("gru", 3)])
def test_a_step_is_two_products_and_one_kernel(sim, kind: str, gates: int) -> None:
    cell = CELLS[kind](64, 64).to("sim")
    x, state = torch.randn(8, 64).to("sim"), torch.zeros(8, 64, device="sim")
    sim.record_timeline()
    with torch.no_grad():
        cell(x, (state, state) if kind == "lstm" else state)
    sim.record_timeline(False)
    names = [span.name for span in sim.timeline() if span.kind == "kernel"]
    assert sum("mm" in name for name in names) == 2
    assert names[-1] == f"aten::_thnn_fused_{kind}_cell"
    assert cell.weight_ih.shape == (gates * 64, 64)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_knows_shapes_and_memory(simulate, kind: str) -> None:
    simulate(dry=True)
    module = KINDS[kind](1024, 1024).to("sim")
    out, _ = module(torch.empty(2, 512, 1024, device="sim"))
    out.sum().backward()
    assert out.shape == (2, 512, 1024)
    assert module.weight_ih_l0.grad.shape == module.weight_ih_l0.shape
