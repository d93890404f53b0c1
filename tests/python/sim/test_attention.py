"""scaled_dot_product_attention: the CPU's values at a fused kernel's memory and cost."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention


def operands(heads: int = 4, groups: int = 1, length: int = 17, width: int = 8, dims: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, heads, length, width)] + [(2, heads // groups, length + 3, width)] * 2
    return [torch.randn(shape[4 - dims :], generator=generator) for shape in shapes]


def gradients(
    tensors: list[torch.Tensor], device: str, mask: torch.Tensor | None, **options: object
) -> list[torch.Tensor]:
    leaves = [tensor.detach().to(device).requires_grad_() for tensor in tensors]
    moved = None if mask is None else mask.detach().to(device).requires_grad_(mask.requires_grad)
    out = attention(*leaves, attn_mask=moved, **options)
    (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(device)).sum().backward()
    wanted = [out.detach(), *(leaf.grad for leaf in leaves)]
    return [tensor.cpu() for tensor in (wanted if moved is None or moved.grad is None else [*wanted, moved.grad])]


BIAS = torch.linspace(-2, 2, 17 * 20).reshape(17, 20)
CASES = {
    "plain": ({}, None, {}),
    "causal": ({}, None, {"is_causal": True}),
    "scaled": ({}, None, {"scale": 0.3}),
    "bool mask": ({}, BIAS > -1, {}),
    "bias": ({}, BIAS, {}),
    "bias with gradient": ({}, BIAS.clone().requires_grad_(), {}),
    "grouped": ({"groups": 2}, None, {"enable_gqa": True}),
    "grouped causal": ({"groups": 4}, None, {"enable_gqa": True, "is_causal": True}),
    "three dimensions": ({"dims": 3}, BIAS, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_the_cpus(sim, case: str) -> None:
    shape, mask, options = CASES[case]
    expected = gradients(operands(**shape), "cpu", mask, **options)
    actual = gradients(operands(**shape), "sim", mask, **options)
    assert torch.equal(actual[0], expected[0])
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_forward_is_one_kernel(sim, case: str) -> None:
    shape, mask, options = CASES[case]
    tensors = [tensor.to("sim") for tensor in operands(**shape)]
    moved = None if mask is None else mask.detach().to("sim")
    bool_masks_are_converted = mask is not None and mask.dtype == torch.bool
    before = sim.stats()["kernels"]
    attention(*tensors, attn_mask=moved, **options)
    if not bool_masks_are_converted:
        assert sim.stats()["kernels"] == before + 1


def test_the_unfused_path_can_be_asked_for(sim) -> None:
    tensors = [tensor.to("sim") for tensor in operands()]
    before = sim.stats()["kernels"]
    with sdpa_kernel(SDPBackend.MATH):
        attention(*tensors)
    assert sim.stats()["kernels"] > before + 3


def test_dropout_takes_the_unfused_path(sim) -> None:
    tensors = [tensor.to("sim") for tensor in operands()]
    torch.manual_seed(0)
    dropped = attention(*tensors, dropout_p=0.5)
    torch.manual_seed(0)
    torch.testing.assert_close(dropped.cpu(), attention(*(tensor.cpu() for tensor in tensors), dropout_p=0.5))


def test_time_is_that_of_the_products(simulate) -> None:
    sim = simulate("a100-40g", overrides={"kernel_floor_seconds": 1e-9})
    q = torch.zeros(1, 8, 2048, 64, dtype=torch.bfloat16, device="sim")
    torch.sim.synchronize()
    before = sim.stats()["kernel_seconds"]
    attention(q, q, q)
    flops = 4 * 8 * 2048 * 2048 * 64
    peak = torch.sim.get_device_properties().figures["flops"]["bfloat16"]
    assert sim.stats()["kernel_seconds"] - before == pytest.approx(flops / peak, rel=0.01)
