"""PyTorch's own operator database, float32: the simulated device gives exactly the CPU's results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from op_db_exceptions import DIFFERENT, EXCLUDED, GRADIENT_DIFFERENT, READS_FRESH_MEMORY
from op_db_samples import OPERATORS, call, gradient_samples, numbers, samples, tensors
from torch.testing._internal.common_methods_invocations import op_db

NAMES = {op.formatted_name for op in op_db}
APPLICABLE = {op.formatted_name for op in OPERATORS}
DIFFERENTIABLE = [
    op for op in OPERATORS if op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
]

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def _device(simulate: Any) -> Iterator[None]:
    simulate("h200")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the samples are tiny: a second thread only waits
    yield
    torch.set_num_threads(threads)


def same_number(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def difference(expected: Any, actual: Any) -> str:
    """What is not the same, empty when all is: kinds, shapes, types, devices and every bit but the sign of a NaN."""
    pairs = list(zip(tensors(expected), tensors(actual), strict=False))
    if len(tensors(expected)) != len(tensors(actual)):
        return "another number of tensors"
    if not all(map(same_number, numbers(expected), numbers(actual))):
        return f"{numbers(expected)} became {numbers(actual)}"
    for want, got in pairs:
        if got.device.type != "sim":
            return f"a result is on {got.device}"
        if (want.shape, want.dtype) != (got.shape, got.dtype):
            return f"{want.dtype} {tuple(want.shape)} became {got.dtype} {tuple(got.shape)}"
        if not torch.equal(want.isnan(), got.isnan().cpu()):
            return "NaN in other places"
        if not torch.equal(comparable(want), comparable(got.cpu())):
            return "other values"
    return ""


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a type that torch.equal takes, without NaN."""
    wide = tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor
    return wide.nan_to_num() if wide.is_floating_point() or wide.is_complex() else wide


def first_difference(op: Any) -> str:
    for sample in samples(op):
        expected, _ = call(op, sample, "cpu")
        try:
            actual, _ = call(op, sample, "sim")
        except RuntimeError as error:
            return str(error).splitlines()[0]
        if found := difference(expected, actual):
            return found
    return ""


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_forward_is_exactly_the_cpus(op: Any) -> None:
    found = first_difference(op)
    if op.formatted_name in DIFFERENT:
        assert found, "it is equal now: take it off the list"
    else:
        assert found == ""


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.formatted_name)
def test_backward_is_close_to_the_cpus(op: Any) -> None:
    if op.formatted_name in GRADIENT_DIFFERENT:
        pytest.xfail(GRADIENT_DIFFERENT[op.formatted_name])
    for sample in gradient_samples(op):
        gradients = []
        for device in ("cpu", "sim"):
            result, leaves = call(op, sample, device)
            roots = [tensor for tensor in tensors(result) if tensor.requires_grad]
            if not roots or not leaves:
                break
            ones = [torch.ones_like(root) for root in roots]
            gradients.append(torch.autograd.grad(roots, leaves, ones, allow_unused=True))
        for want, got in zip(*gradients, strict=True) if gradients else ():
            if want is None:
                assert got is None
            else:
                # Sums whose terms cancel are only as exact as their terms are large.
                largest = want.nan_to_num(0.0, 0.0, 0.0).abs().max().item() if want.numel() else 0.0
                tolerance = 2e-5 * max(1.0, largest)
                torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=tolerance, equal_nan=True)


def test_the_lists_name_operators_that_exist() -> None:
    assert NAMES >= EXCLUDED
    assert {*DIFFERENT, *READS_FRESH_MEMORY} <= APPLICABLE
    assert set(GRADIENT_DIFFERENT) <= {op.formatted_name for op in DIFFERENTIABLE}


def test_no_composite_formula_stands_in_for_a_kernel_of_the_cpu() -> None:
    def has(name: str, key: str) -> bool:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))

    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::") and has(name, "CPU")]
    composite = [
        name for name in names if has(name, "CompositeExplicitAutograd") or has(name, "CompositeImplicitAutograd")
    ]
    assert {"aten::addr", "aten::native_layer_norm"} <= set(composite)
    assert [name for name in composite if not has(name, "PrivateUse1")] == []


def test_at_least_98_percent_are_equal() -> None:
    assert len(DIFFERENT) <= 0.02 * len(APPLICABLE)


def test_at_least_200_gradients_are_compared() -> None:
    assert len(DIFFERENTIABLE) - len(GRADIENT_DIFFERENT) >= 200
