"""Samples of PyTorch's operator database, moved to a device as they are: strides, offsets and overlaps included."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

import torch
from op_db_exceptions import EXCLUDED, READS_FRESH_MEMORY
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

# Gradients are compared over this many samples per operator; None: all.
GRADIENT_SAMPLES = None if os.environ.get("NORIA_LONG") == "1" else 4

OPERATORS = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu") and op.formatted_name not in EXCLUDED]


def samples(op: OpInfo) -> list[SampleInput]:
    """All samples of `op` on the CPU, the same ones in every call."""
    torch.manual_seed(0)
    return list(op.sample_inputs("cpu", torch.float32))


def gradient_samples(op: OpInfo) -> list[SampleInput]:
    """Samples of `op` whose tensors want gradients, the same ones in every call."""
    torch.manual_seed(0)
    return list(itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), GRADIENT_SAMPLES))


def moved(value: Any, device: str) -> Any:
    """`value` with its tensors copied to `device`, each over a copy of its whole storage; leaves stay leaves."""
    if isinstance(value, torch.Tensor):
        storage = value.detach().untyped_storage()
        whole = torch.empty(0, dtype=value.dtype).set_(storage, 0, (storage.nbytes() // value.itemsize,), (1,))
        twin = whole.clone().to(device).as_strided(value.shape, value.stride(), value.storage_offset())
        if value.is_conj():
            twin = twin.conj()
        if value.is_neg():
            twin = torch._neg_view(twin)
        return twin.requires_grad_(value.requires_grad)
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device(device)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [moved(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def call(op: OpInfo, sample: SampleInput, device: str) -> tuple[Any, list[torch.Tensor]]:
    """What `op` returns on `device`, from a fixed seed, and the leaves it was given."""
    arguments = (moved(sample.input, device), moved(sample.args, device), moved(sample.kwargs, device))
    torch.manual_seed(1)
    with contextlib.ExitStack() as stack:
        if not tensors(arguments) and "device" not in sample.kwargs:
            # Numbers alone: the default device is meant. PyTorch remembers which functions obey it from when it was
            # first asked, and transformers replaces one of them for a while when it makes a model.
            torch.utils._device._device_constructors.cache_clear()
            stack.enter_context(torch.device(device))
        if op.formatted_name in READS_FRESH_MEMORY:
            stack.enter_context(filled_memory())
        result = op(arguments[0], *arguments[1], **arguments[2])
    return sample.output_process_fn_grad(result), [leaf for leaf in tensors(arguments) if leaf.requires_grad]


@contextlib.contextmanager
def filled_memory() -> Iterator[None]:
    """Fresh CPU tensors have a fixed content inside."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors(item)]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def numbers(value: Any) -> list[Any]:
    """Everything in nested tuples and lists that is no tensor."""
    if isinstance(value, tuple | list):
        return [number for item in value for number in numbers(item)]
    return [] if isinstance(value, torch.Tensor) else [value]
